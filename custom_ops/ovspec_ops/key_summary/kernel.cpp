#include "key_summary/kernel.hpp"

#include "common/cache_rows.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
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

} // namespace

const SummaryKernels summary_kernels = {mean_key};

} // namespace OVSPEC_ISA
} // namespace ovspec
