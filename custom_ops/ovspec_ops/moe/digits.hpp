// Products in integers (AVX-512 VNNI): a row becomes 16-bit integers times one scale, each held as two signed
// digits of 8 bits (common/digits16.hpp), which the instruction multiplies with the weights as they are
// stored.
#pragma once

#include "common/digits16.hpp"
#include "common/simd.hpp"
#include "moe/dequantised.hpp"
#include "moe/kernel.hpp"

namespace ovspec::OVSPEC_ISA::digits {

constexpr std::size_t width = 64;  // bytes of a vector
constexpr std::size_t header = 64; // bytes before the digits: Header

// A packed row: Header, then for each vector of weights the digits that it is multiplied with, and for u4 the
// sums of every 8 values.
//   u8, 64 values: high digits, low digits
//   u4, 128 values: high digits of the even values, of the odd ones, then both low digits
struct Header {
    float scale;
    float sum; // of the integers
};

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

OVSPEC_INLINE __m512i combined(__m512i high, __m512i low) {
    return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

OVSPEC_INLINE void pack(WeightFormat format, const float* values, std::size_t in, std::uint8_t* packed) {
    const digits16::Unit unit = digits16::unit_of(values, in);
    const bool u4 = format == WeightFormat::u4;
    const std::size_t chunk = chunk_of(format), count = chunks(format, in);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i ones = _mm512_set1_epi8(1);
    std::uint8_t* to = packed + header;
    float* sums = (float*)(to + count * chunk * 2);
    Vec total = {};
    for (std::size_t c = 0; c < count; c++, to += 2 * chunk) {
        auto *high_digits = (std::int8_t*)to, *low_digits = high_digits + chunk;
        for (std::size_t i = 0; i < chunk; i += 2 * lanes) {
            Vec a = values_at(values, c * chunk + i, in), b = values_at(values, c * chunk + i + lanes, in);
            std::size_t second = i + lanes, first = i;
            if (u4) {
                const __m512 both[] = {_mm512_permutex2var_ps((__m512)a, even, (__m512)b),
                                       _mm512_permutex2var_ps((__m512)a, odd, (__m512)b)};
                a = (Vec)both[0];
                b = (Vec)both[1];
                first = i / 2;
                second = width + i / 2;
            }
            digits16::split(a, unit.inverse, high_digits + first, low_digits + first);
            digits16::split(b, unit.inverse, high_digits + second, low_digits + second);
        }
        __m512i high = _mm512_setzero_si512(), low = high;
        for (std::size_t i = 0; i < chunk; i += width) {
            high = _mm512_dpbusd_epi32(high, ones, _mm512_loadu_si512(to + i));
            low = _mm512_dpbusd_epi32(low, ones, _mm512_loadu_si512(to + chunk + i));
        }
        const __m512 eights = _mm512_cvtepi32_ps(combined(high, low));
        if (u4)
            _mm512_storeu_ps(sums + c * lanes, eights);
        total += (Vec)eights;
    }
    const Header head = {unit.value, sum(total)};
    __builtin_memcpy(packed, &head, sizeof(head));
}

OVSPEC_INLINE Header head_of(const std::uint8_t* packed) {
    return load_as<Header>(packed);
}

// Bytes of vector `chunk` that belong to a row of `bytes`.
OVSPEC_INLINE __mmask64 within_row(std::size_t chunk, std::size_t bytes) {
    const std::size_t left = bytes - chunk * width;
    return left < width ? ((__mmask64)1 << left) - 1 : ~(__mmask64)0;
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
        const __mmask64 mask = within_row(c, matrix.row_bytes);
        IVec weight[N];
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            const std::uint8_t* from = data + n * matrix.row_bytes + c * width;
            weight[n] = (IVec)_mm512_maskz_loadu_epi8(mask, from);
            __builtin_prefetch(from + ahead);
        }
        digits16::add_products<N, R>(weight, rows, header + c * 2 * width, high, low);
    }
    Vec acc[R * N];
    digits16::join(high, low, acc);
    dequantised::sum_tile<N, R>(acc, dots);
    const Vec scale = from_f16(load_part<HalfVec>((const std::uint16_t*)matrix.scales + neuron, N));
    const Vec zero_point = to_float(load_part<ByteVec>(matrix.zero_points + neuron, N));
    for (std::size_t r = 0; r < R; r++) {
        const Header head = head_of(rows[r]);
        const Vec dot = load_part<Vec>(dots + r * N, N);
        store_part(dots + r * N, fused(-zero_point, splat(head.sum), dot) * (scale * head.scale), N);
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
            const auto mask = (__mmask16)((1u << left) - 1);
            const __m256i scales = _mm256_maskz_loadu_epi16(mask, matrix.scales + 2 * (first + g));
            const __m128i zero_points = _mm_maskz_loadu_epi8(mask, matrix.zero_points + first + g);
            store(groups.scale[n] + g, from_f16((HalfVec)scales));
            store(groups.zero_point[n] + g, to_float((ByteVec)zero_points));
        }
    }
}

// As dequantised::tile, for u4. In a vector of 64 bytes lane i holds the weights 8 i to 8 i + 7.
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
    const __m512i nibble = _mm512_set1_epi8(15);
    Vec acc[R * N];
    clear(acc);
    for (std::size_t c = 0; c < count; c++) {
        const __mmask64 mask = within_row(c, matrix.row_bytes);
        const std::size_t at = header + c * 4 * width, g = c * 2 * width / group;
#pragma GCC unroll 4
        for (std::size_t n = 0; n < N; n++) {
            const __m512i pairs = _mm512_maskz_loadu_epi8(mask, data + n * matrix.row_bytes + c * width);
            __builtin_prefetch(data + n * matrix.row_bytes + c * width + ahead);
            const __m512i even = _mm512_and_si512(pairs, nibble);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), nibble);
            const Vec scale =
                (Vec)_mm512_permutexvar_ps((__m512i)lane_group, (__m512)load(groups.scale[n] + g));
            const Vec zero_point =
                (Vec)_mm512_permutexvar_ps((__m512i)lane_group, (__m512)load(groups.zero_point[n] + g));
#pragma GCC unroll 4
            for (std::size_t r = 0; r < R; r++) {
                const std::uint8_t* x = rows[r] + at;
                __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, _mm512_load_si512(x));
                __m512i low =
                    _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, _mm512_load_si512(x + 2 * width));
                high = _mm512_dpbusd_epi32(high, odd, _mm512_load_si512(x + width));
                low = _mm512_dpbusd_epi32(low, odd, _mm512_load_si512(x + 3 * width));
                const Vec product = (Vec)_mm512_cvtepi32_ps(combined(high, low));
                const Vec sum_of_eight = load((const float*)(rows[r] + sums) + c * lanes);
                acc[r * N + n] = fused(fused(-zero_point, sum_of_eight, product), scale, acc[r * N + n]);
            }
        }
    }
    dequantised::sum_tile<N, R>(acc, dots);
    for (std::size_t r = 0; r < R; r++)
        for (std::size_t n = 0; n < N; n++)
            dots[r * N + n] *= head_of(rows[r]).scale;
}

} // namespace ovspec::OVSPEC_ISA::digits
