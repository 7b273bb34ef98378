#include "key_summary/op.hpp"

#include <algorithm>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "key_summary/kernel.hpp"
#include "key_summary/layout.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "KeySummary";

enum Input : std::size_t {
    key_cache,
    attention,
    key_summary,
    tables,
    summarised,
    input_count,
};

struct ChangedBlock {
    std::size_t block;
    std::size_t begin; // its first token that no summary has
    std::size_t tokens;
};

// Leaves the entry of each block that begins first.
void list_once(std::vector<ChangedBlock>& blocks) {
    std::sort(blocks.begin(), blocks.end(), [](const ChangedBlock& a, const ChangedBlock& b) {
        return a.block != b.block ? a.block < b.block : a.begin < b.begin;
    });
    const auto same = [](const ChangedBlock& a, const ChangedBlock& b) { return a.block == b.block; };
    blocks.erase(std::unique(blocks.begin(), blocks.end(), same), blocks.end());
}

} // namespace

void KeySummary::check_attributes() const {
    check_kv_heads(name, attributes_.kv_heads);
    check_head_size(name, "k_size", attributes_.k_size);
}

void KeySummary::validate_and_infer_types() {
    check_attributes();
    check_input_count(*this, input_count);
    check_cache_input(*this, key_cache, "key_cache", attributes_.kv_heads, attributes_.k_size);
    check_input(*this, attention, "attention", ov::element::f32, {-1, -1});
    const auto size = static_cast<std::int64_t>(summary_bytes(static_cast<std::size_t>(attributes_.k_size)));
    check_input(*this, key_summary, "key_summary", ov::element::u8, {-1, attributes_.kv_heads, size});
    check_input(*this, tables, "verify_tables", ov::element::i32, {-1});
    check_input(*this, summarised, "summarised_lens", ov::element::i32, {-1});
    set_output_type(0, ov::element::i32, ov::PartialShape{1});
}

void KeySummary::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const CacheView cache =
        view_cache(name, "key_cache", inputs[key_cache], attributes_.kv_heads, attributes_.k_size);
    const std::size_t bytes = summary_bytes(cache.size);
    const ov::Shape summary_shape{cache.blocks, cache.heads, bytes};
    if (inputs[key_summary].get_shape() != summary_shape)
        fail(name, "key_summary holds ", inputs[key_summary].get_size(),
             " values, expected [blocks of key_cache, kv_heads, bytes of a summary] = [", cache.blocks, ", ",
             cache.heads, ", ", bytes, "]");
    check_tensor(name, inputs, attention, "attention", ov::element::f32, {-1, -1});
    // The summary is a buffer that the pass updates in place, as the stock node does with the caches.
    auto* summary = const_cast<std::uint8_t*>(inputs[key_summary].data<const std::uint8_t>());
    summarise({inputs[attention].get_shape()[0], cache, summary, &inputs[tables], &inputs[summarised]});
    outputs[0].set_shape({1});
    outputs[0].data<std::int32_t>()[0] = 0;
}

void KeySummary::summarise(const SummaryCall& call) const {
    if (call.rows == 0) // of a layer that the pass leaves out: it has written no keys
        return;
    const CacheView& cache = call.keys;
    const Sequences sequences = PassTables::view(name, *call.tables, call.rows).sequences;
    check_one_per_sequence(name, "summarised_lens", *call.summarised, sequences.count);
    const std::int32_t* lens = call.summarised->data<const std::int32_t>();
    auto changed = Pool<std::vector<ChangedBlock>>::take();
    changed->clear();
    sequences.check(-1);
    std::size_t summarised_sequences = 0;
    for (std::size_t s = 0; s < sequences.count; s++) {
        if (lens[s] == -1)
            continue;
        summarised_sequences++;
        const std::size_t total = sequences.active(s) ? sequences.past(s) + sequences.row_count(s) : 0;
        if (lens[s] < 0 || static_cast<std::size_t>(lens[s]) >= total)
            fail(name, "summarised_lens[", s, "] is ", lens[s], ", expected -1 or less than the ", total,
                 " tokens of the sequence");
        sequences.check_table(s, cache.blocks);
        const auto begin = static_cast<std::size_t>(lens[s]);
        for (std::size_t b = begin / block_size; b * block_size < total; b++)
            changed->push_back({static_cast<std::size_t>(sequences.table(s)[b]),
                                begin - std::min(begin, b * block_size),
                                std::min(block_size, total - b * block_size)});
    }
    if (summarised_sequences > 1) // they may share full blocks, and one thread is to write a block
        list_once(*changed);
    const SummaryKernels& kernels = OVSPEC_KERNELS(summary_kernels);
    const std::size_t items = changed->size() * cache.heads, bytes = summary_bytes(cache.size);
    parallel_items(items, items * block_size * cache.size, [&](std::size_t item) {
        const ChangedBlock& block = (*changed)[item / cache.heads];
        const std::size_t head = item % cache.heads;
        kernels.summarise(cache, block.block, head, block.begin, block.tokens,
                          call.summary + (block.block * cache.heads + head) * bytes);
    });
}

} // namespace ovspec
