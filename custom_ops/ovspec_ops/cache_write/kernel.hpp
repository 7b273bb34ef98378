// A row's key or value in its slot. Raw pointers only, no OpenVINO type.
#pragma once

#include "common/cache_view.hpp"
#include "common/kernel_tables.hpp"

namespace ovspec {

struct WriteKernels {
    // Puts `cache.size` values of each head, `heads` `[cache.heads, cache.size]`, into slot `slot` of a cache
    // in CacheFormat::f32, or rounded in u8_token. `data` is where that cache begins.
    void (*write_row)(const CacheView& cache, std::uint8_t* data, std::size_t slot, const float* heads);
};

OVSPEC_DECLARE_KERNELS(WriteKernels, write_kernels)

} // namespace ovspec
