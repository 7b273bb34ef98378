// Scores of blocks against queries. Raw pointers only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ovspec {

// One KV head's queries against the summaries of a sequence's blocks.
struct ScoreCall {
    const float* queries; // `[rows, size]`
    std::size_t rows;
    const float* summary; // `[cache blocks, kv_heads, size]`
    std::size_t kv_heads;
    std::size_t head;
    std::size_t size;
    const std::int32_t* table; // `[blocks]`
    std::size_t blocks;
};

struct SelectKernels {
    // scores[b] = the largest of the rows' query . summary of block table[b]; NaN where one of them is.
    void (*score_blocks)(const ScoreCall& call, float* scores);
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
