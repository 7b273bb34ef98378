// Scores of blocks against one query. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovspec {

struct SelectKernels {
    // scores[b] = query . summary of block table[b], for `blocks` blocks of one KV head.
    // summary `[cache blocks, kv_heads, size]`, query `[size]`.
    void (*score_blocks)(const float* query, const float* summary, std::size_t kv_heads, std::size_t head,
                         std::size_t size, const std::int32_t* table, std::size_t blocks, float* scores);
};

namespace plain {
extern const SelectKernels select_kernels;
}
namespace avx2 {
extern const SelectKernels select_kernels;
}
namespace avx512 {
extern const SelectKernels select_kernels;
}
namespace avx2x16 {
extern const SelectKernels select_kernels;
}
namespace avx2vnni {
extern const SelectKernels select_kernels;
}
namespace avx512vnni {
extern const SelectKernels select_kernels;
}
namespace avx2dot {
extern const SelectKernels select_kernels;
}

} // namespace ovspec
