// What DecoderLayers computes, as text that a person can read, and as steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ovspec {

// Rows f32 `[rows of the pass, width]` under a name. A step writes them once.
struct RowsOf {
    std::string name;
    std::size_t width;
    std::size_t place = 0; // first column in the memory of rows that are neither input nor output
    int input = -1;        // input of the operation that holds them
    int output = -1;       // output of the operation that holds them
    bool taken = false;    // as many as `take` chooses, not all of the pass
};

// What a step makes that is no rows f32: a tensor i32 of its own shape. A step writes it once.
struct TableOf {
    std::string name;
    std::vector<std::int64_t> dims; // -1: known when the step has run
    int output = -1;                // output of the operation that holds it
};

// What a step reads or makes: rows, a table, or an input; of weights, from some byte on; of a table of
// caches, an entry; or nothing where an operation takes a tensor of no element.
struct Operand {
    enum Kind { rows, table, input, weights, entry, nothing } kind;
    std::size_t index = 0; // of the rows, the table, or the input
    std::size_t first = 0; // byte, or entry
};

// `outputs = name operands settings`, a line of the program.
struct StepText {
    std::string line, name;
    std::vector<Operand> operands;
    std::vector<Operand> outputs; // rows and tables
    std::map<std::string, std::string> settings;
    Operand condition{Operand::nothing}; // of the setting `if`: an entry of an input, as that of a table

    // Throws where the step has no such setting, or it is no number.
    std::int64_t whole(const char* setting) const;
    std::int64_t whole(const char* setting, std::int64_t otherwise) const; // where there may be none
    std::vector<std::int64_t> wholes(const char* setting) const;           // one after the other, with commas
    float number(const char* setting) const;
    const std::string& word(const char* setting) const;
};

struct ProgramText {
    std::vector<RowsOf> rows;
    std::vector<TableOf> tables;
    std::vector<std::string> inputs; // names of the operation's inputs, in their order
    std::vector<Operand> outputs;    // rows and tables
    std::vector<StepText> steps;
    std::size_t row_floats = 0; // memory of rows, per row of the pass
    int taken_by = -1;          // input that says which rows `take` chooses

    // The step of a name; null where there is none.
    const StepText* step(const char* name) const;

    // Throws std::invalid_argument with the line that is wrong.
    explicit ProgramText(const std::string& text);

private:
    void place_rows();
};

} // namespace ovspec
