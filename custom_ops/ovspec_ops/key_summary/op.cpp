#include "key_summary/op.hpp"

#include <algorithm>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "key_summary/kernel.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "KeySummary";

enum Input : std::size_t {
    key_cache,
    attention,
    key_summary,
    past_lens,
    subsequence_begins,
    block_indices,
    block_indices_begins,
    input_count,
};

struct WrittenBlock {
    std::size_t block;
    std::size_t tokens;
};

Pool<std::vector<WrittenBlock>>& work_lists() {
    static auto* pool = new Pool<std::vector<WrittenBlock>>; // never destroyed: plugin threads may outlive it
    return *pool;
}

} // namespace

std::int64_t summary_rows(const char* op, const std::string& summary) {
    if (summary != "mean" && summary != "min_max")
        fail(op, "attribute summary is '" + summary + "', expected 'mean' or 'min_max'");
    return summary == "mean" ? 1 : 2;
}

KeySummary::KeySummary(const ov::OutputVector& inputs, const KeySummary& attributes)
    : Op(inputs), kv_heads_(attributes.kv_heads_), k_size_(attributes.k_size_),
      summary_(attributes.summary_) {
    constructor_validate_and_infer_types();
}

void KeySummary::validate_and_infer_types() {
    check_heads(name, kv_heads_);
    check_head_size(name, "k_size", k_size_);
    check_input_count(*this, input_count);
    check_cache_input(*this, key_cache, "key_cache", kv_heads_, k_size_);
    check_input(*this, attention, "attention", ov::element::f32, {-1, -1});
    const std::int64_t size = summary_rows(name, summary_) * k_size_;
    check_input(*this, key_summary, "key_summary", ov::element::f32, {-1, kv_heads_, size});
    check_input(*this, past_lens, "past_lens", ov::element::i32, {-1});
    check_input(*this, subsequence_begins, "subsequence_begins", ov::element::i32, {-1});
    check_input(*this, block_indices, "block_indices", ov::element::i32, {-1});
    check_input(*this, block_indices_begins, "block_indices_begins", ov::element::i32, {-1});
    set_output_type(0, ov::element::i32, ov::PartialShape{1});
}

std::shared_ptr<ov::Node> KeySummary::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    return std::make_shared<KeySummary>(inputs, *this);
}

bool KeySummary::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("kv_heads", kv_heads_);
    visitor.on_attribute("k_size", k_size_);
    visitor.on_attribute("summary", summary_);
    return true;
}

bool KeySummary::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const CacheView cache = view_cache(name, "key_cache", inputs[key_cache], kv_heads_, k_size_);
    const std::size_t summary_size = static_cast<std::size_t>(summary_rows(name, summary_)) * cache.size;
    const ov::Shape summary_shape{cache.blocks, cache.heads, summary_size};
    if (inputs[key_summary].get_shape() != summary_shape)
        fail(name, "key_summary holds " + std::to_string(inputs[key_summary].get_size()) +
                       " values, expected [blocks of key_cache, kv_heads, values of a " + summary_ +
                       " summary] = [" + std::to_string(cache.blocks) + ", " + std::to_string(cache.heads) +
                       ", " + std::to_string(summary_size) + "]");
    check_tensor(name, inputs, attention, "attention", ov::element::f32, {-1, -1});
    if (inputs[attention].get_size() == 0) { // of a layer that the pass leaves out: it has written no keys
        outputs[0].set_shape({1});
        outputs[0].data<std::int32_t>()[0] = 0;
        return true;
    }
    const Sequences sequences = view_sequences(
        name, "past_lens", "block_indices", inputs[attention].get_shape()[0], inputs[subsequence_begins],
        inputs[past_lens], inputs[block_indices], inputs[block_indices_begins]);

    auto written = work_lists().take();
    written->clear();
    sequences.check(0);
    for (std::size_t s = 0; s < sequences.count; s++) {
        if (sequences.row_count(s) == 0)
            continue;
        sequences.check_table(s, cache.blocks);
        const std::size_t total = sequences.past(s) + sequences.row_count(s);
        for (std::size_t b = sequences.past(s) / block_size; b < sequences.blocks(s); b++)
            written->push_back({static_cast<std::size_t>(sequences.table(s)[b]),
                                std::min(block_size, total - b * block_size)});
    }

    // The summary is a buffer that the pass updates in place, as the stock node does with the caches.
    float* summary =
        static_cast<float*>(const_cast<void*>(static_cast<const void*>(inputs[key_summary].data())));
    const SummaryKernels& kernels = OVSPEC_KERNELS(summary_kernels);
    const auto summarise = summary_ == "mean" ? kernels.mean_key : kernels.key_range;
    const std::size_t items = written->size() * cache.heads;
    parallel_items(items, items * block_size * cache.size, [&](std::size_t item) {
        const WrittenBlock& block = (*written)[item / cache.heads];
        const std::size_t head = item % cache.heads;
        summarise(cache, block.block, head, block.tokens,
                  summary + (block.block * cache.heads + head) * summary_size);
    });
    outputs[0].set_shape({1});
    outputs[0].data<std::int32_t>()[0] = 0;
    return true;
}

} // namespace ovspec
