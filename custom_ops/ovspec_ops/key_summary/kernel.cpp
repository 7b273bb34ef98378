#include "key_summary/kernel.hpp"

#include "common/cache_rows.hpp"

namespace ovspec::OVSPEC_ISA {
namespace {

void mean_key(const CacheView& cache, std::size_t block, std::size_t head, std::size_t tokens, float* mean) {
    const std::size_t full = cache.size / lanes * lanes, rest = cache.size - full;
    const float share = 1.0f / (float)tokens;
    with_rows(cache, cache.block(block, head), [&](const auto& rows) {
        for (std::size_t d = 0; d < full; d += lanes) {
            Vec total = {};
            for (std::size_t t = 0; t < tokens; t++)
                total += value(rows.row(t), d);
            store(mean + d, total * share);
        }
        if (rest == 0)
            return;
        Vec total = {};
        for (std::size_t t = 0; t < tokens; t++)
            total += value_part(rows.row(t), full, rest);
        store_part(mean + full, total * share, rest);
    });
}

// Element d of a token's key, or of the last `count` < lanes of them.
template <class Rows>
OVSPEC_INLINE Vec key_at(const Rows& rows, std::size_t t, std::size_t d, std::size_t count) {
    return count == lanes ? value(rows.row(t), d) : value_part(rows.row(t), d, count);
}

void key_range(const CacheView& cache, std::size_t block, std::size_t head, std::size_t tokens,
               float* range) {
    with_rows(cache, cache.block(block, head), [&](const auto& rows) {
        for (std::size_t d = 0; d < cache.size; d += lanes) {
            const std::size_t count = cache.size - d < lanes ? cache.size - d : lanes;
            Vec low = key_at(rows, 0, d, count), high = low;
            IVec wrong = low != low;
            for (std::size_t t = 1; t < tokens; t++) {
                const Vec key = key_at(rows, t, d, count);
                low = key < low ? key : low;
                high = key > high ? key : high;
                wrong |= key != key;
            }
            // Comparisons pass over NaN, which has to reach the score.
            const Vec nan = splat(__builtin_nanf(""));
            store_part(range + d, wrong ? nan : low, count);
            store_part(range + cache.size + d, wrong ? nan : high, count);
        }
    });
}

} // namespace

const SummaryKernels summary_kernels = {mean_key, key_range};

} // namespace ovspec::OVSPEC_ISA
