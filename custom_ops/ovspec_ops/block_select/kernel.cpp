#include "block_select/kernel.hpp"

#include "common/simd.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace {

void score_blocks(const float* query, const float* summary, std::size_t kv_heads, std::size_t head,
                  std::size_t size, const std::int32_t* table, std::size_t blocks, float* scores) {
    const std::size_t full = size / lanes * lanes;
    for (std::size_t b = 0; b < blocks; b++) {
        const float* mean = summary + ((std::size_t)table[b] * kv_heads + head) * size;
        Vec total = {};
        for (std::size_t d = 0; d < full; d += lanes)
            total += load(query + d) * load(mean + d);
        float score = sum(total);
        for (std::size_t d = full; d < size; d++)
            score += query[d] * mean[d];
        scores[b] = score;
    }
}

} // namespace

const SelectKernels select_kernels = {score_blocks};

} // namespace OVSPEC_ISA
} // namespace ovspec
