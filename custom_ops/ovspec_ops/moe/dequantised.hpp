// Products in f32: weights become f32 in registers, one fused multiply-add each. Runs on every instruction
// set.
#pragma once

#include "common/float_rows.hpp"
#include "common/simd.hpp"
#include "moe/kernel.hpp"

namespace ovspec::OVSPEC_ISA::dequantised {

// Values of a packed row that one step reads. In u4 rows every `2 * lanes` values hold the even ones first,
// then the odd ones.
constexpr std::size_t step_of(WeightFormat format) {
    return format == WeightFormat::u4 ? 2 * lanes : lanes;
}

OVSPEC_INLINE std::size_t packed_bytes(WeightFormat format, std::size_t in) {
    const std::size_t step = step_of(format);
    return float_rows::packed_bytes((in + step - 1) / step * step);
}

OVSPEC_INLINE void pack(WeightFormat format, const float* values, std::size_t in, std::uint8_t* packed) {
    if (format != WeightFormat::u4)
        return float_rows::pack(values, in, packed);
    float* to = (float*)packed;
    for (std::size_t k = 0; k < in; k += 2 * lanes)
        for (std::size_t i = 0; i < lanes; i++) {
            to[k + i] = k + 2 * i < in ? values[k + 2 * i] : 0.0f;
            to[k + lanes + i] = k + 2 * i + 1 < in ? values[k + 2 * i + 1] : 0.0f;
        }
}

// `lanes` weights from byte `from` on, or the first `count` of them and zeros.
template <WeightFormat format> OVSPEC_INLINE Vec weights(const std::uint8_t* from, std::size_t count) {
    if constexpr (format == WeightFormat::f32)
        return count == lanes ? load_as<Vec>(from) : load_part<Vec>((const float*)from, count);
    else if constexpr (format == WeightFormat::f16)
        return from_f16(count == lanes ? load_as<HalfVec>(from)
                                       : load_part<HalfVec>((const std::uint16_t*)from, count));
    else
        return to_float(count == lanes ? load_as<ByteVec>(from) : load_part<ByteVec>(from, count));
}

template <WeightFormat format> constexpr std::size_t weight_bytes() {
    return format == WeightFormat::f32 ? 4 : format == WeightFormat::f16 ? 2 : 1;
}

// dots[i]: sums of the R * N vectors of a tile.
template <std::size_t N, std::size_t R> OVSPEC_INLINE void sum_tile(const Vec* acc, float* dots) {
#pragma GCC unroll 4
    for (std::size_t r = 0; r < R; r++)
        if constexpr (N == 4)
            sum_four(acc + r * N, dots + r * N);
        else
            for (std::size_t n = 0; n < N; n++)
                dots[r * N + n] = sum(acc[r * N + n]);
}

// dots[r * N + n] of N neurons with R rows; `neuron` counts over all experts. Prefetches weights that lie
// `ahead` bytes behind those that it reads, if that is not 0.
template <WeightFormat format, std::size_t N, std::size_t R>
OVSPEC_INLINE void tile(const ExpertMatrix& matrix, std::size_t neuron, const std::uint8_t* const* rows,
                        std::size_t ahead, float* dots) {
    constexpr bool quantised = format == WeightFormat::u8 || format == WeightFormat::u4;
    constexpr std::size_t step = step_of(format);
    const std::uint8_t* data = matrix.data + neuron * matrix.row_bytes;
    Vec acc[R * N];
    clear(acc);
    const std::size_t groups = quantised ? matrix.groups : 1, group = matrix.in / groups;
    for (std::size_t g = 0; g < groups; g++) {
        Vec scale[N], shift[N];
        if constexpr (quantised)
#pragma GCC unroll 4
            for (std::size_t n = 0; n < N; n++) {
                const std::size_t at = (neuron + n) * groups + g;
                const float factor = scalar_f16(matrix.scales + 2 * at);
                scale[n] = splat(factor);
                shift[n] = splat(factor * (float)matrix.zero_points[at]);
            }
        const auto add = [&](std::size_t k, std::size_t left) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (std::size_t n = 0; n < N; n++) {
                const std::uint8_t* row = data + n * matrix.row_bytes;
                const std::size_t at = format == WeightFormat::u4 ? k / 2 : k * weight_bytes<format>();
                if (ahead != 0 && at % 64 == 0)
                    __builtin_prefetch(row + ahead + at);
                if constexpr (format == WeightFormat::u4) {
                    const std::size_t bytes = left < step ? left / 2 : lanes;
                    const ByteVec pairs = bytes == lanes ? load_as<ByteVec>(row + k / 2)
                                                         : load_part<ByteVec>(row + k / 2, bytes);
                    const Vec even = fused(to_float(pairs & 15), scale[n], -shift[n]);
                    const Vec odd = fused(to_float(pairs >> 4), scale[n], -shift[n]);
#pragma GCC unroll 4
                    for (std::size_t r = 0; r < R; r++) {
                        const float* x = (const float*)rows[r] + k;
                        acc[r * N + n] = fused(even, load(x), acc[r * N + n]);
                        acc[r * N + n] = fused(odd, load(x + lanes), acc[r * N + n]);
                    }
                } else {
                    Vec weight =
                        weights<format>(row + k * weight_bytes<format>(), left < lanes ? left : lanes);
                    if constexpr (quantised)
                        weight = fused(weight, scale[n], -shift[n]);
#pragma GCC unroll 4
                    for (std::size_t r = 0; r < R; r++)
                        acc[r * N + n] = fused(weight, load((const float*)rows[r] + k), acc[r * N + n]);
                }
            }
        };
        std::size_t k = g * group;
        for (const std::size_t end = k + group; k < end; k += step)
            if (k + step <= end)
                add(k, step);
            else
                add(k, end - k);
    }
    sum_tile<N, R>(acc, dots);
}

} // namespace ovspec::OVSPEC_ISA::dequantised
