#include "block_select/op.hpp"

#include <algorithm>
#include <cmath>

#include "block_select/kernel.hpp"
#include "block_select/select.hpp"
#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "key_summary/layout.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "BlockSelect";

enum Input : std::size_t {
    query,
    key_summary,
    summary_token,
    tables,
    budgets,
    coverage,
    input_count,
};

struct Chunk {
    const ScoreCall* call;
    std::size_t number;
};

struct Workspace {
    FloatBuffer bytes, floats;
    std::vector<ScoreCall> calls; // one per sequence; without rows where nothing is chosen
    std::vector<Chunk> chunks;
};

// Rows of a draft at most, as in reference.py. A sequence with more is a prompt.
constexpr std::size_t most_verified_rows = 64;

struct Call {
    const BlockSelectAttributes& attributes;
    Sequences sequences;
    const float* query;          // `[rows, heads * k_size]`
    const std::uint8_t* summary; // `[blocks, kv_heads, summary_bytes]`
    std::size_t kv_heads;
    std::size_t group;
    std::size_t k_size;
    const std::int32_t* budgets;
    const float* coverage;

    bool linear() const { return attributes.rule == "paper"; }
    std::size_t budget(std::size_t s) const { return static_cast<std::size_t>(budgets[s]); }
    // Neither dense nor out of verification.
    bool selects(std::size_t s) const {
        return sequences.active(s) && budgets[s] >= 0 &&
               (budget(s) < sequences.blocks(s) || coverage[s] < 1.0f);
    }
    // Rows that score: all, and by the paper's rule the first one of a draft, the last accepted token.
    std::size_t rows(std::size_t s) const {
        return linear() && sequences.row_count(s) <= most_verified_rows ? 1 : sequences.row_count(s);
    }
    std::size_t work(std::size_t s) const {
        return rows(s) * group * kv_heads * sequences.blocks(s) * summary_parts * k_size;
    }
    // Everything but the memory.
    ScoreCall scores_of(std::size_t s, const SelectKernels& kernels) const {
        ScoreCall of{};
        of.query = query + sequences.first_row(s) * kv_heads * group * k_size;
        of.rows = rows(s);
        of.kv_heads = kv_heads;
        of.group = group;
        of.size = k_size;
        of.scale = attributes.scale;
        of.linear = linear();
        of.summary = summary;
        of.table = sequences.table(s);
        of.past = sequences.past(s);
        of.padded = kernels.padded(of.queries());
        return of;
    }
};

// The parts of a sequence's memory, one behind the other; without memory, only their sizes.
std::size_t place(ScoreCall& call, float* floats) {
    std::size_t used = 0;
    const auto take = [&](std::size_t count) {
        float* part = floats == nullptr ? nullptr : floats + used;
        used += (count + 15) / 16 * 16;
        return part;
    };
    call.scales = take(call.kv_heads * 2 * call.queries());
    call.weights = take(call.kv_heads * call.chunks() * call.queries() * score_blocks);
    call.highest = take(call.kv_heads * call.chunks() * call.padded);
    call.sums = take(call.kv_heads * call.chunks() * call.padded);
    call.scores = take(call.kv_heads * call.blocks());
    return used;
}

// Scores the blocks of all sequences that choose, but for the last step.
void weigh(const Call& call, std::size_t work, const SelectKernels& kernels, Workspace& workspace) {
    const Sequences& sequences = call.sequences;
    workspace.calls.assign(sequences.count, ScoreCall{});
    std::size_t bytes = 0, floats = 0;
    for (std::size_t s = 0; s < sequences.count; s++) {
        if (!call.selects(s))
            continue;
        ScoreCall& of = workspace.calls[s] = call.scores_of(s, kernels);
        bytes += of.kv_heads * of.queries() * of.size;
        floats += place(of, nullptr);
    }
    auto* byte = reinterpret_cast<std::int8_t*>(workspace.bytes.reserve_bytes(bytes));
    float* number = workspace.floats.reserve(floats);
    workspace.chunks.clear();
    for (ScoreCall& of : workspace.calls) {
        if (of.rows == 0)
            continue;
        of.bytes = byte;
        byte += of.kv_heads * of.queries() * of.size;
        number += place(of, number);
        for (std::size_t chunk = 0; chunk < of.chunks(); chunk++)
            workspace.chunks.push_back({&of, chunk});
    }
    parallel_items(sequences.count * call.kv_heads, work / 64, [&](std::size_t item) {
        const ScoreCall& of = workspace.calls[item / call.kv_heads];
        if (of.rows > 0)
            kernels.pack(of, item % call.kv_heads);
    });
    parallel_items(workspace.chunks.size(), work, [&](std::size_t item) {
        const Chunk& chunk = workspace.chunks[item];
        kernels.weigh(*chunk.call, chunk.number);
    });
}

// Values and tables of all sequences; returns the multiply-adds of the scores.
std::size_t check(const Call& call, std::size_t cache_blocks) {
    const Sequences& sequences = call.sequences;
    sequences.check(-1);
    std::size_t work = 0;
    for (std::size_t s = 0; s < sequences.count; s++) {
        if (call.budgets[s] < -1 || call.budgets[s] == 0)
            fail(name, "verify_budgets[", s, "] is ", call.budgets[s],
                 ", expected -1 (dense) or at least 1 block");
        if (!(call.coverage[s] > 0.0f && call.coverage[s] <= 1.0f))
            fail(name, "verify_coverage[", s, "] is ", call.coverage[s],
                 ", expected a share above 0, up to 1 (no limit)");
        if (!call.selects(s))
            continue;
        sequences.check_table(s, cache_blocks);
        work += call.work(s);
    }
    return work;
}

} // namespace

void BlockSelect::check_attributes() const {
    const BlockSelectAttributes& a = attributes_;
    check_kv_heads(name, a.kv_heads);
    check_head_size(name, "k_size", a.k_size);
    choice_of<bool>(name, "rule", a.rule, {{"mass", false}, {"paper", true}});
    check_at_least(name, "sink_blocks", a.sink_blocks, 1); // the first and the last block are always kept
    check_at_least(name, "local_blocks", a.local_blocks, 1);
    if (!(std::isfinite(a.scale) && a.scale > 0.0f))
        fail(name, "attribute scale is ", a.scale, ", expected a positive number");
}

void BlockSelect::validate_and_infer_types() {
    check_attributes();
    const BlockSelectAttributes& a = attributes_;
    check_input_count(*this, input_count);
    check_input(*this, query, "query", ov::element::f32, {-1, -1});
    const auto bytes = static_cast<std::int64_t>(summary_bytes(static_cast<std::size_t>(a.k_size)));
    check_input(*this, key_summary, "key_summary", ov::element::u8, {-1, a.kv_heads, bytes});
    check_input(*this, summary_token, "summary_token", ov::element::i32, {1});
    check_input(*this, tables, "verify_tables", ov::element::i32, {-1});
    check_input(*this, budgets, "verify_budgets", ov::element::i32, {-1});
    check_input(*this, coverage, "verify_coverage", ov::element::f32, {-1});
    const auto& rows = get_input_partial_shape(query);
    const std::int64_t unit = a.kv_heads * a.k_size;
    if (rows.rank().is_static() && rows[1].is_static() && rows[1].get_length() % unit != 0)
        fail(name, "query has rows of ", rows[1].get_length(),
             " values, expected a multiple of kv_heads * k_size = ", unit);
    set_output_type(0, ov::element::i32, {a.kv_heads, -1});
    set_output_type(1, ov::element::i32, {a.kv_heads, -1});
}

void BlockSelect::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    check_tensor(name, inputs, query, "query", ov::element::f32, {-1, -1});
    const ov::Shape rows = inputs[query].get_shape(), summary = inputs[key_summary].get_shape();
    const auto kv_heads = static_cast<std::size_t>(attributes_.kv_heads);
    const std::size_t bytes = summary_bytes(static_cast<std::size_t>(attributes_.k_size));
    if (summary.size() != 3 || summary[1] != kv_heads || summary[2] != bytes)
        fail(name, "key_summary is not [blocks, kv_heads, ", bytes,
             "]; give the buffer that KeySummary writes");
    select({rows[0], rows[1], inputs[query].data<const float>(),
            inputs[key_summary].data<const std::uint8_t>(), summary[0], &inputs[tables], &inputs[budgets],
            &inputs[coverage], &outputs[0], &outputs[1]});
}

void BlockSelect::select(const SelectCall& given) const {
    const auto kv_heads = static_cast<std::size_t>(attributes_.kv_heads);
    const auto k_size = static_cast<std::size_t>(attributes_.k_size);
    const std::size_t group = given.width / (kv_heads * k_size);
    if (group == 0 || given.width % (kv_heads * k_size) != 0)
        fail(name, "query has rows of ", given.width, " values, expected a multiple of kv_heads * k_size");
    const Sequences sequences = PassTables::view(name, *given.tables, given.rows).sequences;
    check_one_per_sequence(name, "verify_budgets", *given.budgets, sequences.count);
    const auto* blocks = given.budgets->data<const std::int32_t>();
    if (std::all_of(blocks, blocks + sequences.count, [](std::int32_t budget) { return budget == -1; })) {
        reshape(*given.selected, {kv_heads, 0});
        reshape(*given.counts, {kv_heads, 0});
        return;
    }
    reshape(*given.selected, {kv_heads, sequences.table_size});
    reshape(*given.counts, {kv_heads, sequences.count});
    auto* selected = given.selected->data<std::int32_t>();
    auto* counts = given.counts->data<std::int32_t>();
    std::fill_n(selected, kv_heads * sequences.table_size, -1);
    std::fill_n(counts, kv_heads * sequences.count, -1);
    if (given.rows == 0) // of a layer that the pass leaves out: whoever takes its list reads everything
        return;
    check_one_per_sequence(name, "verify_coverage", *given.coverage, sequences.count);
    const Call call{attributes_,   sequences, given.query,
                    given.summary, kv_heads,  group,
                    k_size,        blocks,    given.coverage->data<const float>()};
    const std::size_t work = check(call, given.blocks);
    if (work == 0)
        return;
    auto workspace = Pool<Workspace>::take();
    const SelectKernels& kernels = OVSPEC_KERNELS(select_kernels);
    weigh(call, work, kernels, *workspace);
    parallel_items(sequences.count * kv_heads, work / summary_parts, [&](std::size_t item) {
        const std::size_t s = item / kv_heads, head = item % kv_heads;
        const ScoreCall& of = workspace->calls[s];
        if (of.rows == 0)
            return;
        kernels.add_up(of, head);
        const Ends ends =
            Ends::of(sequences.blocks(s), of.past, static_cast<std::size_t>(attributes_.sink_blocks),
                     static_cast<std::size_t>(attributes_.local_blocks));
        const Scores scores{of.scores + head * of.blocks(), of.blocks(), of.linear, of.past};
        counts[head * sequences.count + s] = static_cast<std::int32_t>(
            select_blocks(scores, ends, {call.budget(s), call.coverage[s]}, of_this_thread<Candidates>(),
                          selected + head * sequences.table_size + sequences.first_column(s)));
    });
}

} // namespace ovspec
