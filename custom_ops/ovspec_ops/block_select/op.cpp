#include "block_select/op.hpp"

#include <algorithm>

#include "block_select/kernel.hpp"
#include "block_select/select.hpp"
#include "common/parallel.hpp"
#include "common/tensors.hpp"

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
    input_count,
};

struct Workspace {
    FloatBuffer query;
    FloatBuffer scores;
    std::vector<std::int32_t> others;
};

Pool<Workspace>& workspaces() {
    static auto* pool = new Pool<Workspace>; // never destroyed: plugin threads may outlive static objects
    return *pool;
}

struct Call {
    const float* query;   // `[rows, heads * size]`
    const float* summary; // `[blocks, kv_heads, size]`
    std::size_t kv_heads;
    std::size_t group;
    std::size_t size;
};

// Mean of the KV head's query heads: the mean of their scores is this vector's score.
void mean_query(const Call& call, std::size_t row, std::size_t head, float* mean) {
    const float* from = call.query + (row * call.kv_heads + head) * call.group * call.size;
    const float share = 1.0f / static_cast<float>(call.group);
    for (std::size_t d = 0; d < call.size; d++) {
        float total = 0.0f;
        for (std::size_t g = 0; g < call.group; g++)
            total += from[g * call.size + d];
        mean[d] = total * share;
    }
}

} // namespace

BlockSelect::BlockSelect(const ov::OutputVector& inputs, const BlockSelect& attributes)
    : Op(inputs), kv_heads_(attributes.kv_heads_), k_size_(attributes.k_size_) {
    constructor_validate_and_infer_types();
}

void BlockSelect::validate_and_infer_types() {
    check_heads(name, kv_heads_);
    check_head_size(name, "k_size", k_size_);
    check_input_count(*this, input_count);
    check_input(*this, query, "query", ov::element::f32, {-1, -1});
    check_input(*this, key_summary, "key_summary", ov::element::f32, {-1, kv_heads_, k_size_});
    check_input(*this, summary_token, "summary_token", ov::element::i32, {1});
    check_input(*this, subsequence_begins, "subsequence_begins", ov::element::i32, {-1});
    check_input(*this, past_lens, "verify_past_lens", ov::element::i32, {-1});
    check_input(*this, block_indices, "verify_block_indices", ov::element::i32, {-1});
    check_input(*this, block_indices_begins, "verify_block_indices_begins", ov::element::i32, {-1});
    check_input(*this, budgets, "verify_budgets", ov::element::i32, {-1});
    const auto& rows = get_input_partial_shape(query);
    const std::int64_t unit = kv_heads_ * k_size_;
    if (rows.rank().is_static() && rows[1].is_static() && rows[1].get_length() % unit != 0)
        fail(name, "query has rows of " + std::to_string(rows[1].get_length()) +
                       " values, expected a multiple of kv_heads * k_size = " + std::to_string(unit));
    const auto columns = [&](Input input) {
        const auto& shape = get_input_partial_shape(input);
        return shape.rank().is_static() ? shape[0] : ov::Dimension::dynamic();
    };
    set_output_type(0, ov::element::i32, {kv_heads_, columns(block_indices)});
    set_output_type(1, ov::element::i32, {kv_heads_, columns(past_lens)});
}

std::shared_ptr<ov::Node> BlockSelect::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    return std::make_shared<BlockSelect>(inputs, *this);
}

bool BlockSelect::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("kv_heads", kv_heads_);
    visitor.on_attribute("k_size", k_size_);
    return true;
}

bool BlockSelect::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const ov::Shape rows = inputs[query].get_shape(), summary = inputs[key_summary].get_shape();
    Call call{};
    call.kv_heads = static_cast<std::size_t>(kv_heads_);
    call.size = static_cast<std::size_t>(k_size_);
    call.group = rows[1] / (call.kv_heads * call.size);
    if (call.group == 0 || rows[1] % (call.kv_heads * call.size) != 0)
        fail(name, "query has rows of " + std::to_string(rows[1]) +
                       " values, expected a multiple of kv_heads * k_size");
    if (summary.size() != 3 || summary[1] != call.kv_heads || summary[2] != call.size)
        fail(name, "key_summary is not [blocks, kv_heads, k_size]; give the buffer that KeySummary writes");
    const Sequences sequences =
        view_sequences(name, "verify_past_lens", "verify_block_indices", rows[0], inputs[subsequence_begins],
                       inputs[past_lens], inputs[block_indices], inputs[block_indices_begins]);
    if (inputs[budgets].get_size() != sequences.count)
        fail(name, "verify_budgets holds " + std::to_string(inputs[budgets].get_size()) +
                       " values, expected " + std::to_string(sequences.count) + ": one per sequence");
    const std::int32_t* budget = inputs[budgets].data<const std::int32_t>();
    sequences.check(-1);
    // Neither dense nor out of verification.
    const auto selects = [&](std::size_t s) {
        return sequences.active(s) && budget[s] >= 0 &&
               static_cast<std::size_t>(budget[s]) < sequences.blocks(s);
    };
    std::size_t work = 0;
    for (std::size_t s = 0; s < sequences.count; s++) {
        if (budget[s] < -1 || budget[s] == 0)
            fail(name, "verify_budgets[" + std::to_string(s) + "] is " + std::to_string(budget[s]) +
                           ", expected -1 (dense) or at least 1 block");
        if (!sequences.active(s))
            continue;
        sequences.check_table(s, summary[0]);
        if (selects(s))
            work += sequences.blocks(s) * call.kv_heads * call.size;
    }

    outputs[0].set_shape({call.kv_heads, sequences.table_size});
    outputs[1].set_shape({call.kv_heads, sequences.count});
    std::int32_t* selected = outputs[0].data<std::int32_t>();
    std::int32_t* counts = outputs[1].data<std::int32_t>();
    std::fill(selected, selected + outputs[0].get_size(), -1);
    std::fill(counts, counts + outputs[1].get_size(), -1);
    call.query = inputs[query].data<const float>();
    call.summary = inputs[key_summary].data<const float>();
    const SelectKernels& kernels = OVSPEC_KERNELS(select_kernels);

    parallel_items(sequences.count * call.kv_heads, work, [&](std::size_t item) {
        const std::size_t s = item / call.kv_heads, head = item % call.kv_heads;
        if (!selects(s))
            return;
        const std::size_t blocks = sequences.blocks(s);
        auto workspace = workspaces().take();
        float* mean = workspace->query.reserve(call.size);
        float* scores = workspace->scores.reserve(blocks);
        mean_query(call, sequences.first_row(s), head, mean);
        kernels.score_blocks(mean, call.summary, call.kv_heads, head, call.size, sequences.table(s), blocks,
                             scores);
        const std::size_t past = sequences.past(s);
        const std::size_t kept = select_blocks(
            scores, blocks, (past > 0 ? past - 1 : 0) / block_size, static_cast<std::size_t>(budget[s]),
            workspace->others, selected + head * sequences.table_size + sequences.first_column(s));
        counts[head * sequences.count + s] = static_cast<std::int32_t>(kept);
    });
    return true;
}

} // namespace ovspec
