// Products in integers: a row becomes 16-bit integers times one scale, each held as two signed digits of 8
// bits (common/digits16.hpp), which the instruction multiplies with the weights as they are stored.
#pragma once

#include "common/digits16.hpp"
#include "common/simd.hpp"
#include "moe/dequantised.hpp"
#include "moe/kernel.hpp"

namespace ovspec::OVSPEC_ISA::digits {

constexpr std::size_t width = 4 * lanes; // bytes of a vector

// A packed row: Header, then for each vector of weights the digits that it is multiplied with, and for u4 the
// sums of every 8 values.
//   u8, a vector of values: high digits, low digits
//   u4, two vectors of values: high digits of the even values, of the odd ones, then both low digits
using digits16::head_of, digits16::header, digits16::Header;

OVSPEC_INLINE std::size_t chunk_of(WeightFormat format) {
    return format == WeightFormat::u4 ? 2 * width : width;
}

OVSPEC_INLINE std::size_t chunks(WeightFormat format, std::size_t in) {
    return (in + chunk_of(format) - 1) / chunk_of(format);
}

OVSPEC_INLINE std::size_t packed_bytes(WeightFormat format, std::size_t in) {
    const std::size_t sums = format == WeightFormat::u4 ? chunks(format, in) * lanes * sizeof(float) : 0;
    return header + chunks(format, in) * chunk_of(format) * 2 + sums;
}

OVSPEC_INLINE Vec values_at(const float* values, std::size_t k, std::size_t in) {
    if (k + lanes <= in)
        return load(values + k);
    return k < in ? load_part<Vec>(values + k, in - k) : Vec{};
}

// Every second value of a and then of b, from the first on or from the second.
OVSPEC_INLINE Vec every_second(Vec a, Vec b, std::int32_t first) {
    const IVec numbers = lane_numbers(), from = (2 * numbers + first) & (std::int32_t)(lanes - 1);
    return numbers < (std::int32_t)(lanes / 2) ? permuted(a, from) : permuted(b, from);
}

OVSPEC_INLINE void pack(WeightFormat format, const float* values, std::size_t in, std::uint8_t* packed) {
    const digits16::Unit unit = digits16::unit_of(values, in);
    const bool u4 = format == WeightFormat::u4;
    const std::size_t chunk = chunk_of(format), count = chunks(format, in);
    const IVec ones = (IVec)((UVec{} + 0x01010101u));
    std::uint8_t* to = packed + header;
    float* sums = (float*)(to + count * chunk * 2);
    Vec total = {};
    for (std::size_t c = 0; c < count; c++, to += 2 * chunk) {
        auto *high_digits = (std::int8_t*)to, *low_digits = high_digits + chunk;
        for (std::size_t i = 0; i < chunk; i += 2 * lanes) {
            const std::size_t k = c * chunk + i;
            const Vec a = values_at(values, k, in), b = values_at(values, k + lanes, in);
            const std::size_t first = u4 ? i / 2 : i, second = u4 ? width + i / 2 : i + lanes;
            digits16::split(u4 ? every_second(a, b, 0) : a, unit.inverse, high_digits + first,
                            low_digits + first);
            digits16::split(u4 ? every_second(a, b, 1) : b, unit.inverse, high_digits + second,
                            low_digits + second);
        }
        IVec high = {}, low = {};
        for (std::size_t i = 0; i < chunk; i += width) {
            high = dot(high, ones, load_as<IVec>(to + i));
            low = dot(low, ones, load_as<IVec>(to + chunk + i));
        }
        const Vec eights = digits16::joined(high, low);
        if (u4)
            store(sums + c * lanes, eights);
        total += eights;
    }
    const Header head = {unit.value, sum(total)};
    __builtin_memcpy(packed, &head, sizeof(head));
}

// As dequantised::tile, for u8. Not inlined: the compiler would have more values to keep in
// registers and spill the sums.
template <std::size_t N, std::size_t R>
__attribute__((noinline)) void tile_u8(const ExpertMatrix& matrix, std::size_t neuron,
                                       const std::uint8_t* const* rows, std::size_t ahead, float* dots) {
    const std::uint8_t* data = matrix.data + neuron * matrix.row_bytes;
    IVec high[R * N], low[R * N];
    clear(high);
    clear(low);
    const std::size_t count = chunks(WeightFormat::u8, matrix.in);
    for (std::size_t c = 0; c < count; c++) {
        IVec weight[N];
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            const std::uint8_t* from = data + n * matrix.row_bytes + c * width;
            weight[n] = load_bytes(from, matrix.row_bytes - c * width);
            __builtin_prefetch(from + ahead);
        }
        digits16::add_products<N, R, width>(weight, rows, header + c * 2 * width, high, low);
    }
    Vec acc[R * N];
    digits16::join(high, low, acc);
    dequantised::sum_tile<N, R>(acc, dots);
    const Vec scale = from_f16(load_part<HalfVec>((const std::uint16_t*)matrix.scales + neuron, N));
    const Vec zero_point = to_float(load_part<ByteVec>(matrix.zero_points + neuron, N));
    for (std::size_t r = 0; r < R; r++) {
        const Header head = head_of(rows[r]);
        const Vec dot = load_part<Vec>(dots + r * N, N);
        store_part(dots + r * N, fused(-zero_point, splat(head.sum), dot) * (scale * head.unit), N);
    }
}

// Scales and zero points of N neurons in f32; readable a vector past their end.
template <std::size_t N> struct Groups {
    float scale[N][max_groups + OVSPEC_LANES];
    float zero_point[N][max_groups + OVSPEC_LANES];
};

template <std::size_t N>
OVSPEC_INLINE void read_groups(const ExpertMatrix& matrix, std::size_t neuron, Groups<N>& groups) {
    for (std::size_t n = 0; n < N; n++) {
        const std::size_t first = (neuron + n) * matrix.groups;
        for (std::size_t g = 0; g < matrix.groups; g += lanes) {
            const std::size_t left = matrix.groups - g < lanes ? matrix.groups - g : lanes;
            const auto* scales = (const std::uint16_t*)matrix.scales + first + g;
            store(groups.scale[n] + g, from_f16(load_some<HalfVec>(scales, left)));
            store(groups.zero_point[n] + g,
                  to_float(load_some<ByteVec>(matrix.zero_points + first + g, left)));
        }
    }
}

// As dequantised::tile, for u4. Lane i of a vector holds the weights 8 i to 8 i + 7.
template <std::size_t N, std::size_t R>
__attribute__((noinline)) void tile_u4(const ExpertMatrix& matrix, std::size_t neuron,
                                       const std::uint8_t* const* rows, const Groups<N>& groups,
                                       std::size_t ahead, float* dots) {
    const std::uint8_t* data = matrix.data + neuron * matrix.row_bytes;
    const std::size_t group =
        matrix.groups == 1 ? chunks(WeightFormat::u4, matrix.in) * 2 * width : matrix.in / matrix.groups;
    IVec lane_group;
    for (std::size_t i = 0; i < lanes; i++)
        lane_group[i] = (std::int32_t)(group < 2 * width ? 8 * i / group : 0);
    const std::size_t count = chunks(WeightFormat::u4, matrix.in);
    const std::size_t sums = header + count * 4 * width;
    Vec acc[R * N];
    clear(acc);
    for (std::size_t c = 0; c < count; c++) {
        const std::size_t at = header + c * 4 * width, g = c * 2 * width / group;
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            const std::uint8_t* from = data + n * matrix.row_bytes + c * width;
            const UVec pairs = (UVec)load_bytes(from, matrix.row_bytes - c * width);
            __builtin_prefetch(from + ahead);
            const IVec even = (IVec)(pairs & 0x0f0f0f0fu), odd = (IVec)(pairs >> 4 & 0x0f0f0f0fu);
            const Vec scale = permuted(load(groups.scale[n] + g), lane_group);
            const Vec zero_point = permuted(load(groups.zero_point[n] + g), lane_group);
#pragma GCC unroll 4
            for (std::size_t r = 0; r < R; r++) {
                const std::uint8_t* x = rows[r] + at;
                const IVec high = dot(IVec{}, even, load_as<IVec>(x));
                const IVec low = dot(IVec{}, even, load_as<IVec>(x + 2 * width));
                const Vec product = digits16::joined(dot(high, odd, load_as<IVec>(x + width)),
                                                     dot(low, odd, load_as<IVec>(x + 3 * width)));
                const Vec sum_of_eight = load((const float*)(rows[r] + sums) + c * lanes);
                acc[r * N + n] = fused(fused(-zero_point, sum_of_eight, product), scale, acc[r * N + n]);
            }
        }
    }
    dequantised::sum_tile<N, R>(acc, dots);
    for (std::size_t r = 0; r < R; r++)
        for (std::size_t n = 0; n < N; n++)
            dots[r * N + n] *= head_of(rows[r]).unit;
}

} // namespace ovspec::OVSPEC_ISA::digits
