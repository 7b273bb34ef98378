// Rows times panels in f32, where the processor has no integer dot products: weights become numbers in
// registers and meet every row of a block.
#pragma once

#include "linear/panels.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace float_path {

constexpr std::size_t most_rows = 4;

OVSPEC_INLINE std::size_t stride_of(const LinearWeights& w) {
    return (w.padded() + 15) / 16 * 16;
}

OVSPEC_INLINE void pack(const LinearWeights& w, const float* values, std::size_t count, std::size_t rows,
                        std::uint8_t* packed) {
    float* to = (float*)packed;
    __builtin_memset(to, 0, rows * stride_of(w) * sizeof(float));
    for (std::size_t r = 0; r < count; r++)
        __builtin_memcpy(to + r * stride_of(w), values + r * w.inputs, w.inputs * sizeof(float));
}

// Every lane's byte, as a number.
OVSPEC_INLINE Vec byte_of(UVec quad, unsigned byte) {
    return __builtin_convertvector((IVec)((quad >> (8 * byte)) & 255u), Vec);
}

// R rows times `lanes` neurons from `part` on.
template <WeightFormat format, std::size_t R>
OVSPEC_INLINE void rows_of(const LinearWeights& w, const std::uint8_t* panel, std::size_t part,
                           const float* values, std::size_t row, const PanelTarget& target) {
    const std::size_t size = w.groups == 1 ? w.padded() : w.group_size();
    const std::size_t stride = stride_of(w);
    const std::uint8_t* weights = panel + w.data_at() + 4 * part;
    Vec total[R];
    for (std::size_t r = 0; r < R; r++)
        total[r] = Vec{};
    const auto add = [&](UVec quad, Vec zero_point, std::size_t k, Vec* sums) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (unsigned byte = 0; byte < 4; byte++) {
            const Vec weight = byte_of(quad, byte) - zero_point;
#pragma GCC unroll 4
            for (std::size_t r = 0; r < R; r++)
                sums[r] += weight * values[r * stride + k + byte];
        }
    };
    for (std::size_t g = 0; g < w.groups; g++) {
        const panels::Scales scales(w, panel, g, part);
        Vec sums[R];
        for (std::size_t r = 0; r < R; r++)
            sums[r] = Vec{};
        panels::for_quads<format>(weights, size / 4, false,
                                  [&](IVec quad, std::size_t q) __attribute__((always_inline)) {
                                      add((UVec)quad, scales.zero_point, g * size + 4 * q, sums);
                                  });
        weights += size * panels::input_bytes(format);
        for (std::size_t r = 0; r < R; r++)
            total[r] += sums[r] * scales.scale;
    }
    for (std::size_t r = 0; r < R; r++)
        panels::write(target, row + r, part, total[r]);
}

template <WeightFormat format>
OVSPEC_INLINE void product(const LinearWeights& w, std::size_t first, std::size_t count,
                           const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets) {
    const float* values = (const float*)packed; // blocks follow each other without a gap
    for (std::size_t p = 0; p < count; p++)
        for (std::size_t part = 0; part < panel_width; part += lanes)
            panels::for_rows<most_rows>(rows, [&](auto R, std::size_t row) __attribute__((always_inline)) {
                rows_of<format, R>(w, w.panel(first + p), part, values + row * stride_of(w), row, targets[p]);
            });
}

} // namespace float_path
} // namespace OVSPEC_ISA
} // namespace ovspec
