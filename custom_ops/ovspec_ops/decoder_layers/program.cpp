#include "decoder_layers/program.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/fail.hpp"

namespace ovspec {
namespace {

constexpr const char* op = "DecoderLayers";
constexpr const char* version = "ovspec layers 1";
constexpr std::size_t most_width = std::size_t{1} << 24;

template <class Number> Number parsed(const std::string& text, const std::string& line) {
    std::istringstream from(text);
    Number value{};
    const bool negative = std::is_unsigned_v<Number> && text.find('-') != std::string::npos;
    if (negative || !(from >> value) || !from.eof())
        fail(op, "'", text, "' in the line '", line, "' is no number");
    return value;
}

// "name:width"
RowsOf declared(const std::string& word, const std::string& line) {
    const std::size_t colon = word.find(':');
    if (colon == std::string::npos || colon == 0)
        fail(op, "'", word, "' in the line '", line, "' is not NAME:WIDTH");
    const auto width = parsed<std::size_t>(word.substr(colon + 1), line);
    if (width > most_width)
        fail(op, "'", word, "' in the line '", line, "' is wider than ", most_width);
    return {word.substr(0, colon), width};
}

// "name:i32[dimension,...]"
TableOf declared_table(const std::string& word, const std::string& line) {
    const std::size_t colon = word.find(':'), open = word.find('[');
    if (colon == 0 || colon > open || word.back() != ']')
        fail(op, "'", word, "' in the line '", line, "' is not NAME:i32[DIMENSION,...]");
    if (word.substr(colon + 1, open - colon - 1) != "i32")
        fail(op, "'", word, "' in the line '", line, "' is no table of i32");
    TableOf table{word.substr(0, colon), {}};
    std::istringstream dims(word.substr(open + 1, word.size() - open - 2));
    for (std::string dim; std::getline(dims, dim, ',');)
        table.dims.push_back(dim == "?" ? -1 : static_cast<std::int64_t>(parsed<std::size_t>(dim, line)));
    for (const std::int64_t dim : table.dims)
        if (dim > static_cast<std::int64_t>(most_width) || dim < -1)
            fail(op, "'", word, "' in the line '", line, "' is larger than ", most_width);
    return table;
}

// The lines of a program one after the other.
class Reader {
public:
    explicit Reader(ProgramText& program) : program_(program) {}

    void read(const std::string& line) {
        std::istringstream words(line);
        std::string word;
        words >> word;
        if (word == "input") {
            while (words >> word)
                add_input(word, line);
        } else if (word == "output") {
            while (words >> word)
                program_.outputs.push_back(known(word, line));
        } else {
            add_step(line);
        }
    }

private:
    void add_input(const std::string& word, const std::string& line) {
        if (word.find(':') == std::string::npos) {
            program_.inputs.push_back(word);
            return;
        }
        RowsOf rows = declared(word, line);
        rows.input = static_cast<int>(program_.inputs.size());
        program_.inputs.push_back(rows.name);
        declare(std::move(rows), line);
    }

    Operand declare(RowsOf rows, const std::string& line) {
        const Operand made{Operand::rows, program_.rows.size()};
        rows.taken = rows.input < 0 && program_.taken_by >= 0;
        remember(rows.name, made, line);
        program_.rows.push_back(std::move(rows));
        return made;
    }

    Operand declare(TableOf table, const std::string& line) {
        const Operand made{Operand::table, program_.tables.size()};
        remember(table.name, made, line);
        program_.tables.push_back(std::move(table));
        return made;
    }

    void remember(const std::string& name, Operand made, const std::string& line) {
        if (!by_name_.emplace(name, made).second)
            fail(op, "'", name, "' is written twice, the second time in the line '", line, "'");
    }

    Operand known(const std::string& name, const std::string& line) const {
        const auto found = by_name_.find(name);
        if (found == by_name_.end())
            fail(op, "the line '", line, "' reads '", name, "', which nothing before it writes");
        return found->second;
    }

    std::size_t input(const std::string& name, const std::string& line) const {
        const auto found = std::find(program_.inputs.begin(), program_.inputs.end(), name);
        if (found == program_.inputs.end())
            known(name, line);
        return static_cast<std::size_t>(found - program_.inputs.begin());
    }

    Operand operand(const std::string& word, const std::string& line) const {
        const std::size_t at = word.find_first_of("@#");
        if (at != std::string::npos)
            return {word[at] == '@' ? Operand::weights : Operand::entry, input(word.substr(0, at), line),
                    parsed<std::size_t>(word.substr(at + 1), line)};
        if (word == "none")
            return {Operand::nothing};
        if (by_name_.count(word))
            return by_name_.at(word);
        return {Operand::input, input(word, line)};
    }

    // "table#place"
    Operand condition(const std::string& word, const std::string& line) const {
        const std::size_t at = word.find('#');
        if (at == std::string::npos)
            fail(op, "if=", word, " in the line '", line, "' is not TABLE#PLACE");
        return {Operand::entry, input(word.substr(0, at), line),
                parsed<std::size_t>(word.substr(at + 1), line)};
    }

    void add_step(const std::string& line) {
        const std::size_t equals = line.find(" = ");
        if (equals == std::string::npos)
            fail(op, "the line '", line, "' is no step: expected OUTPUTS = STEP OPERANDS");
        StepText step;
        step.line = line;
        std::istringstream right(line.substr(equals + 3)), left(line.substr(0, equals));
        std::string word;
        right >> step.name;
        while (right >> word) {
            const std::size_t at = word.find('=');
            if (at == std::string::npos)
                step.operands.push_back(operand(word, line));
            else
                step.settings[word.substr(0, at)] = word.substr(at + 1);
        }
        if (step.name == "take")
            take(step);
        for (const Operand& from : step.operands)
            if (from.kind == Operand::rows && program_.taken_by >= 0 && !program_.rows[from.index].taken &&
                step.name != "take")
                fail(op, "the line '", line, "' reads '", program_.rows[from.index].name,
                     "', rows of which `take` has left some out");
        if (step.settings.count("if"))
            step.condition = condition(step.word("if"), line);
        while (left >> word)
            step.outputs.push_back(word.find('[') == std::string::npos
                                       ? declare(declared(word, line), line)
                                       : declare(declared_table(word, line), line));
        program_.steps.push_back(std::move(step));
    }

    void take(const StepText& step) {
        if (program_.taken_by >= 0 || step.operands.size() != 2 || step.operands[1].kind != Operand::input ||
            step.settings.count("if"))
            fail(op, "the line '", step.line, "' is a second one, or not OUTPUT = take ROWS INPUT");
        program_.taken_by = static_cast<int>(step.operands[1].index);
    }

    ProgramText& program_;
    std::map<std::string, Operand> by_name_;
};

} // namespace

std::int64_t StepText::whole(const char* setting) const {
    return parsed<std::int64_t>(word(setting), line);
}

std::int64_t StepText::whole(const char* setting, std::int64_t otherwise) const {
    return settings.count(setting) ? whole(setting) : otherwise;
}

std::vector<std::int64_t> StepText::wholes(const char* setting) const {
    std::vector<std::int64_t> found;
    std::istringstream numbers(word(setting));
    for (std::string number; std::getline(numbers, number, ',');)
        found.push_back(parsed<std::int64_t>(number, line));
    return found;
}

float StepText::number(const char* setting) const {
    return parsed<float>(word(setting), line);
}

const std::string& StepText::word(const char* setting) const {
    const auto found = settings.find(setting);
    if (found == settings.end())
        fail(op, "the line '", line, "' lacks ", setting, "=");
    return found->second;
}

ProgramText::ProgramText(const std::string& text) {
    std::istringstream lines(text);
    std::string line;
    if (!std::getline(lines, line) || line != version)
        fail(op, "the program begins with '", line, "', expected '", version, "'; export the model again");
    Reader reader(*this);
    while (std::getline(lines, line))
        if (!line.empty())
            reader.read(line);
    if (outputs.empty() || steps.empty())
        fail(op, "the program has ", steps.size(), " steps and ", outputs.size(),
             " outputs, expected at least one of each");
    for (std::size_t i = 0; i < outputs.size(); i++) {
        const bool is_rows = outputs[i].kind == Operand::rows;
        int& output = is_rows ? rows[outputs[i].index].output : tables[outputs[i].index].output;
        if (output >= 0 || (is_rows && rows[outputs[i].index].input >= 0))
            fail(op, "output '", is_rows ? rows[outputs[i].index].name : tables[outputs[i].index].name,
                 "' is an input, or given twice");
        output = static_cast<int>(i);
    }
    place_rows();
}

const StepText* ProgramText::step(const char* name) const {
    const auto named = [&](const StepText& step) { return step.name == name; };
    const auto found = std::find_if(steps.begin(), steps.end(), named);
    return found == steps.end() ? nullptr : &*found;
}

// Rows that nobody reads any more leave their place to later ones.
void ProgramText::place_rows() {
    std::vector<std::size_t> last(rows.size(), 0);
    for (std::size_t s = 0; s < steps.size(); s++)
        for (const Operand& from : steps[s].operands)
            if (from.kind == Operand::rows)
                last[from.index] = s;
    struct Place {
        std::size_t first, width, free_from;
    };
    std::vector<Place> places;
    for (std::size_t s = 0; s < steps.size(); s++)
        for (const Operand& output : steps[s].outputs) {
            if (output.kind != Operand::rows || rows[output.index].output >= 0)
                continue;
            RowsOf& made = rows[output.index];
            const std::size_t until = std::max(last[output.index], s);
            const auto fits = [&](const Place& place) {
                return place.free_from < s && place.width == made.width;
            };
            auto found = std::find_if(places.begin(), places.end(), fits);
            if (found == places.end()) {
                places.push_back({row_floats, made.width, 0});
                row_floats += made.width;
                found = places.end() - 1;
            }
            found->free_from = until;
            made.place = found->first;
        }
}

} // namespace ovspec
