// Summary of the keys of one block and KV head. Raw pointers only, no OpenVINO type.
#pragma once

#include "common/cache_view.hpp"
#include "common/kernel_tables.hpp"

namespace ovspec {

struct SummaryKernels {
    // mean[d] over the first `tokens` (1 .. 32) keys of `block` for one head; writes cache.size floats.
    void (*mean_key)(const CacheView& cache, std::size_t block, std::size_t head, std::size_t tokens,
                     float* mean);
    // range[d] and range[cache.size + d]: the smallest and the largest value of channel d over the same keys,
    // NaN where one of them is; writes 2 * cache.size floats.
    void (*key_range)(const CacheView& cache, std::size_t block, std::size_t head, std::size_t tokens,
                      float* range);
};

OVSPEC_DECLARE_KERNELS(SummaryKernels, summary_kernels)

} // namespace ovspec
