// Rows of one block of a cache as vectors of f32, one reader per cache format. Part of the kernels: see
// simd.hpp.
//
// A reader has `row(token)`, and a row has `raw(d)`: the entries d .. d + lanes - 1, `raw_part(d, count)`:
// the last `count` < lanes of a row, zero beyond, and `raw_two(a, b, d)`: half a vector of each of two rows.
// A value is (raw - row.offset) * row.scale, which are 0 and 1 but where every token has its own.
#pragma once

#include "common/cache_view.hpp"
#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {

// The lower half of a vector from `a`, the upper one from `b`.
template <class T> OVSPEC_INLINE T load_two(const void* a, const void* b) {
    T joined;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 64) {
        const __m512d x =
            _mm512_insertf64x4(_mm512_castpd256_pd512(load_as<__m256d>(a)), load_as<__m256d>(b), 1);
        __builtin_memcpy(&joined, &x, sizeof(x));
        return joined;
    }
#endif
#if defined(__AVX2__)
    if constexpr (sizeof(T) == 32) {
        const __m256i x = _mm256_loadu2_m128i((const __m128i*)b, (const __m128i*)a);
        __builtin_memcpy(&joined, &x, sizeof(x));
        return joined;
    } else if constexpr (sizeof(T) == 16) {
        const __m128i x = _mm_set_epi64x(load_as<long long>(b), load_as<long long>(a));
        __builtin_memcpy(&joined, &x, sizeof(x));
        return joined;
    }
#endif
    __builtin_memcpy(&joined, a, sizeof(T) / 2);
    __builtin_memcpy((char*)&joined + sizeof(T) / 2, b, sizeof(T) / 2);
    return joined;
}

// Numbers, which `convert` makes f32: a vector of `lanes` is `Stored`.
template <class Stored, class Element, Vec (*convert)(Stored)> struct NumberRows {
    struct Row {
        const Element* data;
        static constexpr float scale = 1.0f;
        static constexpr float offset = 0.0f;
        OVSPEC_INLINE_MEMBER Vec raw(std::size_t d) const { return convert(load_as<Stored>(data + d)); }
        static OVSPEC_INLINE_MEMBER Vec raw_two(const Row& a, const Row& b, std::size_t d) {
            return convert(load_two<Stored>(a.data + d, b.data + d));
        }
        OVSPEC_INLINE_MEMBER Vec raw_part(std::size_t d, std::size_t count) const {
            return convert(load_part<Stored>(data + d, count));
        }
    };
    const std::uint8_t* block;
    std::size_t row_bytes;
    NumberRows(const CacheView& cache, const std::uint8_t* at) : block(at), row_bytes(cache.row_bytes) {}
    OVSPEC_INLINE_MEMBER Row row(std::size_t token) const {
        return {(const Element*)(block + token * row_bytes)};
    }
};

OVSPEC_INLINE Vec as_they_are(Vec x) {
    return x;
}

using F32Rows = NumberRows<Vec, float, as_they_are>;
using F16Rows = NumberRows<HalfVec, std::uint16_t, from_f16>;
using Bf16Rows = NumberRows<HalfVec, std::uint16_t, from_bf16>;

struct U8TokenRows {
    struct Row {
        const std::uint8_t* data;
        float scale;
        float offset; // the zero point
        OVSPEC_INLINE_MEMBER Vec raw(std::size_t d) const { return to_float(load_as<ByteVec>(data + d)); }
        static OVSPEC_INLINE_MEMBER Vec raw_two(const Row& a, const Row& b, std::size_t d) {
            return to_float(load_two<ByteVec>(a.data + d, b.data + d));
        }
        OVSPEC_INLINE_MEMBER Vec raw_part(std::size_t d, std::size_t count) const {
            return to_float(load_part<ByteVec>(data + d, count));
        }
    };
    const std::uint8_t* block;
    std::size_t row_bytes;
    U8TokenRows(const CacheView& cache, const std::uint8_t* at) : block(at), row_bytes(cache.row_bytes) {}
    OVSPEC_INLINE_MEMBER Row row(std::size_t token) const {
        const std::uint8_t* at = block + token * row_bytes;
        return {at + 8, load_as<float>(at), load_as<float>(at + 4)};
    }
};

struct U8ChannelRows {
    struct Row {
        const std::uint8_t* data;
        const float* scales;
        const float* zero_points;
        static constexpr float scale = 1.0f;
        static constexpr float offset = 0.0f;
        OVSPEC_INLINE_MEMBER Vec raw(std::size_t d) const {
            return (to_float(load_as<ByteVec>(data + d)) - load(zero_points + d)) * load(scales + d);
        }
        static OVSPEC_INLINE_MEMBER Vec raw_two(const Row& a, const Row& b, std::size_t d) {
            const float *zeros = a.zero_points + d, *scales = a.scales + d;
            return (to_float(load_two<ByteVec>(a.data + d, b.data + d)) - load_two<Vec>(zeros, zeros)) *
                   load_two<Vec>(scales, scales);
        }
        OVSPEC_INLINE_MEMBER Vec raw_part(std::size_t d, std::size_t count) const {
            return (to_float(load_part<ByteVec>(data + d, count)) - load_part<Vec>(zero_points + d, count)) *
                   load_part<Vec>(scales + d, count);
        }
    };
    const std::uint8_t* block;
    std::size_t size;
    U8ChannelRows(const CacheView& cache, const std::uint8_t* at) : block(at), size(cache.size) {}
    OVSPEC_INLINE_MEMBER Row row(std::size_t token) const {
        return {block + (8 + token) * size, (const float*)block, (const float*)block + size};
    }
};

// The values d .. d + lanes - 1 of a row; with `count` those that are left of it, anything beyond.
template <class Row> OVSPEC_INLINE Vec value(const Row& row, std::size_t d) {
    return (row.raw(d) - row.offset) * row.scale;
}

template <class Row> OVSPEC_INLINE Vec value_part(const Row& row, std::size_t d, std::size_t count) {
    return (row.raw_part(d, count) - row.offset) * row.scale;
}

// Calls `use(rows)` with the reader of the cache's format for the block at `at`.
template <class Use> OVSPEC_INLINE void with_rows(const CacheView& cache, const std::uint8_t* at, Use&& use) {
    switch (cache.format) {
    case CacheFormat::f32:
        return use(F32Rows(cache, at));
    case CacheFormat::f16:
        return use(F16Rows(cache, at));
    case CacheFormat::bf16:
        return use(Bf16Rows(cache, at));
    case CacheFormat::u8_token:
        return use(U8TokenRows(cache, at));
    case CacheFormat::u8_channel:
        return use(U8ChannelRows(cache, at));
    }
}

} // namespace ovspec::OVSPEC_ISA
