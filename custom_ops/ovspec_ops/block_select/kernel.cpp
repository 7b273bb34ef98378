#include "block_select/kernel.hpp"

#include "common/simd.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace {

OVSPEC_INLINE float dot(const float* a, const float* b, std::size_t size) {
    const std::size_t full = size / lanes * lanes;
    Vec total = {};
    for (std::size_t d = 0; d < full; d += lanes)
        total += load(a + d) * load(b + d);
    float result = sum(total);
    for (std::size_t d = full; d < size; d++)
        result += a[d] * b[d];
    return result;
}

void score_blocks(const ScoreCall& call, float* scores) {
    for (std::size_t b = 0; b < call.blocks; b++) {
        const std::size_t at = (std::size_t)call.table[b] * call.kv_heads + call.head;
        const float* summary = call.summary + at * call.size;
        float highest = dot(call.queries, summary, call.size);
        bool wrong = highest != highest;
        for (std::size_t row = 1; row < call.rows; row++) {
            const float score = dot(call.queries + row * call.size, summary, call.size);
            highest = score > highest ? score : highest;
            wrong = wrong || score != score;
        }
        scores[b] = wrong ? __builtin_nanf("") : highest;
    }
}

} // namespace

const SelectKernels select_kernels = {score_blocks};

} // namespace OVSPEC_ISA
} // namespace ovspec
