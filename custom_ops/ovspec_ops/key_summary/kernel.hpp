// Summary of the keys of one block and KV head. Raw pointers only, no OpenVINO type.
#pragma once

#include "common/cache_view.hpp"
#include "common/kernel_tables.hpp"

namespace ovspec {

struct SummaryKernels {
    // Summarises the first `tokens` (1 .. 32) keys of `block` for one head, from the part of token `begin`
    // on: parts before it stay. Writes to summary_bytes(cache.size) bytes (layout.hpp). A part without tokens
    // is zeros; one with a key that is not finite has a scale that is no number.
    void (*summarise)(const CacheView& cache, std::size_t block, std::size_t head, std::size_t begin,
                      std::size_t tokens, std::uint8_t* summary);
};

OVSPEC_DECLARE_KERNELS(SummaryKernels, summary_kernels)

} // namespace ovspec
