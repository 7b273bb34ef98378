// Mean key of one block and KV head. Raw pointers only, no OpenVINO type.
#pragma once

#include "common/cache_view.hpp"

namespace ovspec {

struct SummaryKernels {
    // mean[d] over the first `tokens` (1 .. 32) keys of `block` for one head; writes cache.size floats.
    void (*mean_key)(const CacheView& cache, std::size_t block, std::size_t head, std::size_t tokens,
                     float* mean);
};

namespace plain {
extern const SummaryKernels summary_kernels;
}
namespace avx2 {
extern const SummaryKernels summary_kernels;
}
namespace avx512 {
extern const SummaryKernels summary_kernels;
}
namespace avx2x16 {
extern const SummaryKernels summary_kernels;
}
namespace avx2vnni {
extern const SummaryKernels summary_kernels;
}
namespace avx512vnni {
extern const SummaryKernels summary_kernels;
}
namespace avx2dot {
extern const SummaryKernels summary_kernels;
}

} // namespace ovspec
