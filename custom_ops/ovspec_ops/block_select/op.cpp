#include "block_select/op.hpp"

#include <algorithm>
#include <cmath>

#include "block_select/kernel.hpp"
#include "block_select/select.hpp"
#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "key_summary/op.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "BlockSelect";

enum Input : std::size_t {
    query,
    key_summary,
    summary_token,
    subsequence_begins,
    past_lens,
    block_indices,
    block_indices_begins,
    budgets,
    coverage,
    refresh,
    kept_blocks,
    input_count,
};

// Blocks of a sequence whose lists are chosen, scored by one thread.
struct Chunk {
    ScoreCall scores;
    std::size_t begin;
    std::size_t end;
};

struct Workspace {
    FloatBuffer queries;
    FloatBuffer scores;
    std::vector<Chunk> chunks;
    std::vector<const float*> scores_of; // per sequence `[kv_heads, blocks]`, nullptr where nothing is chosen
};

constexpr std::size_t chunk_blocks = 32;

// Rows of a draft at most, as in reference.py. A sequence with more is a prompt, whose blocks are scored with
// the mean of its queries.
constexpr std::size_t most_verified_rows = 64;

struct Call {
    const BlockSelectAttributes& attributes;
    Sequences sequences;
    const float* query;   // `[rows, heads * k_size]`
    const float* summary; // `[blocks, kv_heads, summary_size]`
    std::size_t kv_heads;
    std::size_t group;
    std::size_t k_size;
    std::size_t summary_size;
    const std::int32_t* budgets;
    const float* coverage;
    const std::int32_t* refresh; // nullptr: every list is chosen anew
    std::int32_t* kept;          // `[N, kv_heads]`, or nullptr: lists are not remembered

    std::size_t budget(std::size_t s) const { return static_cast<std::size_t>(budgets[s]); }
    // Neither dense nor out of verification.
    bool selects(std::size_t s) const {
        return sequences.active(s) && budgets[s] >= 0 &&
               (budget(s) < sequences.blocks(s) || coverage[s] < 1.0f);
    }
    bool reuses(std::size_t s) const { return refresh != nullptr && refresh[s] == 0; }
    bool chooses(std::size_t s) const { return selects(s) && !reuses(s); }
    bool is_prompt(std::size_t s) const { return sequences.row_count(s) > most_verified_rows; }
    // Queries that a block is scored with, the mean of so many rows each.
    std::size_t queries(std::size_t s) const {
        return attributes.query == "union" && !is_prompt(s) ? sequences.row_count(s) : 1;
    }
    std::size_t rows_of_query(std::size_t s) const { return is_prompt(s) ? sequences.row_count(s) : 1; }
    std::int32_t& kept_at(std::size_t s, std::size_t block, std::size_t head) const {
        return kept[(sequences.first_column(s) + block) * kv_heads + head];
    }
};

// What to multiply a block's summary with so that the product is the mean score of the KV head's query heads,
// and of `rows` rows from the first one.
// The score over a range, the sum of max(q * min, q * max), takes a channel's minimum where q is negative and
// its maximum where q is positive, so the means of both parts of q do for it what the mean of q does for mean
// keys.
void mean_query(const Call& call, std::size_t first, std::size_t rows, std::size_t head, float* mean) {
    const std::size_t width = call.kv_heads * call.group * call.k_size;
    const float* from = call.query + first * width + head * call.group * call.k_size;
    const float share = 1.0f / static_cast<float>(rows * call.group);
    const bool range = call.summary_size != call.k_size;
    std::fill(mean, mean + call.summary_size, 0.0f);
    for (std::size_t r = 0; r < rows; r++, from += width) {
        for (std::size_t g = 0; g < call.group; g++) {
            for (std::size_t d = 0; d < call.k_size; d++) {
                const float q = from[g * call.k_size + d];
                mean[d] += range && q > 0.0f ? 0.0f : q;
                if (range)
                    mean[call.k_size + d] += q > 0.0f ? q : 0.0f;
            }
        }
    }
    for (std::size_t d = 0; d < call.summary_size; d++)
        mean[d] *= share;
}

// The list of the last refresh, and what came since: `Ends` are kept whatever is remembered of them.
std::size_t reuse(const Call& call, std::size_t s, std::size_t head, const Ends& ends,
                  std::int32_t* selected) {
    std::size_t count = 0;
    for (std::size_t b = 0; b < ends.blocks; b++)
        if (b < ends.sinks || b >= ends.local || call.kept_at(s, b, head) != 0)
            selected[count++] = static_cast<std::int32_t>(b);
    // Once the context has grown past them, today's last blocks are blocks of the list like any other.
    for (std::size_t b = ends.local; b < ends.blocks; b++)
        call.kept_at(s, b, head) = 1;
    return count;
}

// Scores the blocks of all sequences that choose; `work` is the multiply-adds of it.
void score(const Call& call, std::size_t work, Workspace& workspace) {
    const Sequences& sequences = call.sequences;
    std::size_t query_floats = 0, score_floats = 0;
    for (std::size_t s = 0; s < sequences.count; s++) {
        if (!call.chooses(s))
            continue;
        query_floats += call.queries(s) * call.kv_heads * call.summary_size;
        score_floats += sequences.blocks(s) * call.kv_heads;
    }
    float* queries = workspace.queries.reserve(query_floats);
    float* scores = workspace.scores.reserve(score_floats);
    workspace.chunks.clear();
    workspace.scores_of.assign(sequences.count, nullptr);
    for (std::size_t s = 0; s < sequences.count; s++) {
        if (!call.chooses(s))
            continue;
        const std::size_t rows = call.queries(s), blocks = sequences.blocks(s);
        for (std::size_t item = 0; item < call.kv_heads * rows; item++)
            mean_query(call, sequences.first_row(s) + item % rows, call.rows_of_query(s), item / rows,
                       queries + item * call.summary_size);
        const ScoreCall of{queries, rows,  call.summary, call.kv_heads, call.summary_size, sequences.table(s),
                           blocks,  scores};
        for (std::size_t begin = 0; begin < blocks; begin += chunk_blocks)
            workspace.chunks.push_back({of, begin, std::min(begin + chunk_blocks, blocks)});
        workspace.scores_of[s] = scores;
        queries += rows * call.kv_heads * call.summary_size;
        scores += blocks * call.kv_heads;
    }
    const SelectKernels& kernels = OVSPEC_KERNELS(select_kernels);
    parallel_items(workspace.chunks.size(), work, [&](std::size_t item) {
        const Chunk& chunk = workspace.chunks[item];
        kernels.score_blocks(chunk.scores, chunk.begin, chunk.end);
    });
}

std::size_t choose(const Call& call, std::size_t s, std::size_t head, const Ends& ends, const float* scores,
                   std::int32_t* selected) {
    Candidates& scratch = of_this_thread<Candidates>();
    const std::size_t total = call.sequences.past(s) + call.sequences.row_count(s);
    const Limits limits{call.budget(s), call.coverage[s], call.attributes.scale,
                        total - (ends.blocks - 1) * block_size};
    const std::size_t count = select_blocks(scores + head * ends.blocks, ends, limits, scratch, selected);
    if (call.kept != nullptr) {
        for (std::size_t b = 0; b < ends.blocks; b++)
            call.kept_at(s, b, head) = 0;
        for (std::size_t i = 0; i < count; i++)
            call.kept_at(s, static_cast<std::size_t>(selected[i]), head) = 1;
    }
    return count;
}

void check_one_per_sequence(const char* input, const ov::Tensor& tensor, std::size_t count) {
    if (tensor.get_size() != count)
        fail(name, input, " holds ", tensor.get_size(), " values, expected ", count, ": one per sequence");
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
        if (call.reuses(s) && call.kept == nullptr)
            fail(name, "verify_refresh[", s,
                 "] is 0 (reuse), but kept_blocks holds no list; give it [entries of verify_block_indices, "
                 "kv_heads] values, or refresh");
        if (!sequences.active(s))
            continue;
        sequences.check_table(s, cache_blocks);
        if (call.chooses(s))
            work += sequences.blocks(s) * call.kv_heads * call.queries(s) * call.summary_size;
    }
    return work;
}

} // namespace

void BlockSelect::validate_and_infer_types() {
    const BlockSelectAttributes& a = attributes_;
    check_kv_heads(name, a.kv_heads);
    check_head_size(name, "k_size", a.k_size);
    const std::int64_t summary_size = summary_rows(name, a.summary) * a.k_size;
    choice_of<bool>(name, "query", a.query, {{"last", false}, {"union", true}});
    check_at_least(name, "sink_blocks", a.sink_blocks, 1); // the first and the last block are always kept
    check_at_least(name, "local_blocks", a.local_blocks, 1);
    if (!(std::isfinite(a.scale) && a.scale > 0.0f))
        fail(name, "attribute scale is ", a.scale, ", expected a positive number");
    check_input_count(*this, input_count);
    check_input(*this, query, "query", ov::element::f32, {-1, -1});
    check_input(*this, key_summary, "key_summary", ov::element::f32, {-1, a.kv_heads, summary_size});
    check_input(*this, summary_token, "summary_token", ov::element::i32, {1});
    check_input(*this, subsequence_begins, "subsequence_begins", ov::element::i32, {-1});
    check_input(*this, past_lens, "verify_past_lens", ov::element::i32, {-1});
    check_input(*this, block_indices, "verify_block_indices", ov::element::i32, {-1});
    check_input(*this, block_indices_begins, "verify_block_indices_begins", ov::element::i32, {-1});
    check_input(*this, budgets, "verify_budgets", ov::element::i32, {-1});
    check_input(*this, coverage, "verify_coverage", ov::element::f32, {-1});
    check_input(*this, refresh, "verify_refresh", ov::element::i32, {-1});
    check_input(*this, kept_blocks, "kept_blocks", ov::element::i32, {-1, a.kv_heads});
    const auto& rows = get_input_partial_shape(query);
    const std::int64_t unit = a.kv_heads * a.k_size;
    if (rows.rank().is_static() && rows[1].is_static() && rows[1].get_length() % unit != 0)
        fail(name, "query has rows of ", rows[1].get_length(),
             " values, expected a multiple of kv_heads * k_size = ", unit);
    const auto columns = [&](Input input) {
        const auto& shape = get_input_partial_shape(input);
        return shape.rank().is_static() ? shape[0] : ov::Dimension::dynamic();
    };
    set_output_type(0, ov::element::i32, {a.kv_heads, columns(block_indices)});
    set_output_type(1, ov::element::i32, {a.kv_heads, columns(past_lens)});
}

void BlockSelect::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    check_tensor(name, inputs, query, "query", ov::element::f32, {-1, -1});
    const ov::Shape rows = inputs[query].get_shape(), summary = inputs[key_summary].get_shape();
    const auto kv_heads = static_cast<std::size_t>(attributes_.kv_heads);
    const auto k_size = static_cast<std::size_t>(attributes_.k_size);
    const std::size_t summary_size =
        static_cast<std::size_t>(summary_rows(name, attributes_.summary)) * k_size;
    const std::size_t group = rows[1] / (kv_heads * k_size);
    if (group == 0 || rows[1] % (kv_heads * k_size) != 0)
        fail(name, "query has rows of ", rows[1], " values, expected a multiple of kv_heads * k_size");
    if (summary.size() != 3 || summary[1] != kv_heads || summary[2] != summary_size)
        fail(name, "key_summary is not [blocks, kv_heads, ", summary_size,
             "]; give the buffer that KeySummary writes");
    if (rows[0] == 0) { // of a layer that the pass leaves out: whoever takes its list reads everything
        outputs[0].set_shape({kv_heads, inputs[block_indices].get_size()});
        outputs[1].set_shape({kv_heads, inputs[past_lens].get_size()});
        for (ov::Tensor& output : outputs)
            std::fill_n(output.data<std::int32_t>(), output.get_size(), -1);
        return;
    }
    const Sequences sequences =
        view_sequences(name, "verify_past_lens", "verify_block_indices", rows[0], inputs[subsequence_begins],
                       inputs[past_lens], inputs[block_indices], inputs[block_indices_begins]);
    check_one_per_sequence("verify_budgets", inputs[budgets], sequences.count);
    check_one_per_sequence("verify_coverage", inputs[coverage], sequences.count);
    const bool refreshes = inputs[refresh].get_size() > 0, remembers = inputs[kept_blocks].get_size() > 0;
    if (refreshes)
        check_one_per_sequence("verify_refresh", inputs[refresh], sequences.count);
    if (remembers && inputs[kept_blocks].get_shape() != ov::Shape{sequences.table_size, kv_heads})
        fail(name, "kept_blocks holds ", inputs[kept_blocks].get_size(),
             " values, expected none or [entries of verify_block_indices, kv_heads] = [",
             sequences.table_size, ", ", kv_heads, "]");
    // A buffer that the pass updates in place, as the stock node does with the caches.
    std::int32_t* kept =
        remembers ? const_cast<std::int32_t*>(inputs[kept_blocks].data<const std::int32_t>()) : nullptr;
    const Call call{attributes_,
                    sequences,
                    inputs[query].data<const float>(),
                    inputs[key_summary].data<const float>(),
                    kv_heads,
                    group,
                    k_size,
                    summary_size,
                    inputs[budgets].data<const std::int32_t>(),
                    inputs[coverage].data<const float>(),
                    refreshes ? inputs[refresh].data<const std::int32_t>() : nullptr,
                    kept};
    const std::size_t work = check(call, summary[0]);

    outputs[0].set_shape({kv_heads, sequences.table_size});
    outputs[1].set_shape({kv_heads, sequences.count});
    std::int32_t* selected = outputs[0].data<std::int32_t>();
    std::int32_t* counts = outputs[1].data<std::int32_t>();
    std::fill(selected, selected + outputs[0].get_size(), -1);
    std::fill(counts, counts + outputs[1].get_size(), -1);
    auto workspace = Pool<Workspace>::take();
    score(call, work, *workspace);
    parallel_items(sequences.count * kv_heads, work, [&](std::size_t item) {
        const std::size_t s = item / kv_heads, head = item % kv_heads;
        if (!call.selects(s))
            return;
        const Ends ends = Ends::of(sequences.blocks(s), sequences.past(s),
                                   static_cast<std::size_t>(attributes_.sink_blocks),
                                   static_cast<std::size_t>(attributes_.local_blocks));
        std::int32_t* list = selected + head * sequences.table_size + sequences.first_column(s);
        const float* scores = workspace->scores_of[s];
        const std::size_t count =
            scores == nullptr ? reuse(call, s, head, ends, list) : choose(call, s, head, ends, scores, list);
        counts[head * sequences.count + s] = static_cast<std::int32_t>(count);
    });
}

} // namespace ovspec
