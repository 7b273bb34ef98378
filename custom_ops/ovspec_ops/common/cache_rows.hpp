// Rows of one block of a cache as vectors of f32, one reader per cache format. Part of the kernels: see
// simd.hpp.
//
// A reader has `row(token)`, and a row has `raw(d)`: the entries d .. d + lanes - 1, and `raw_part(d,
// count)`: the last `count` < lanes of a row, zero beyond. A value is (raw - row.offset) * row.scale; both
// are 0 and 1 for all channels alike unless `affine` is true, so that a caller may fold them into scores and
// weights.
#pragma once

#include "common/cache_view.hpp"
#include "common/simd.hpp"

namespace ovspec {
namespace OVSPEC_ISA {

struct F32Rows {
    static constexpr bool affine = false;
    struct Row {
        const float* data;
        static constexpr float scale = 1.0f;
        static constexpr float offset = 0.0f;
        OVSPEC_INLINE_MEMBER Vec raw(std::size_t d) const { return load(data + d); }
        OVSPEC_INLINE_MEMBER Vec raw_part(std::size_t d, std::size_t count) const {
            return load_part<Vec>(data + d, count);
        }
    };
    const std::uint8_t* block;
    std::size_t row_bytes;
    F32Rows(const CacheView& cache, const std::uint8_t* at) : block(at), row_bytes(cache.row_bytes) {}
    OVSPEC_INLINE_MEMBER Row row(std::size_t token) const {
        return {(const float*)(block + token * row_bytes)};
    }
};

template <Vec (*convert)(HalfVec)> struct HalfRows {
    static constexpr bool affine = false;
    struct Row {
        const std::uint16_t* data;
        static constexpr float scale = 1.0f;
        static constexpr float offset = 0.0f;
        OVSPEC_INLINE_MEMBER Vec raw(std::size_t d) const { return convert(load_as<HalfVec>(data + d)); }
        OVSPEC_INLINE_MEMBER Vec raw_part(std::size_t d, std::size_t count) const {
            return convert(load_part<HalfVec>(data + d, count));
        }
    };
    const std::uint8_t* block;
    std::size_t row_bytes;
    HalfRows(const CacheView& cache, const std::uint8_t* at) : block(at), row_bytes(cache.row_bytes) {}
    OVSPEC_INLINE_MEMBER Row row(std::size_t token) const {
        return {(const std::uint16_t*)(block + token * row_bytes)};
    }
};
using F16Rows = HalfRows<from_f16>;
using Bf16Rows = HalfRows<from_bf16>;

struct U8TokenRows {
    static constexpr bool affine = true;
    struct Row {
        const std::uint8_t* data;
        float scale;
        float offset; // the zero point
        OVSPEC_INLINE_MEMBER Vec raw(std::size_t d) const { return to_float(load_as<ByteVec>(data + d)); }
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
    static constexpr bool affine = false;
    struct Row {
        const std::uint8_t* data;
        const float* scales;
        const float* zero_points;
        static constexpr float scale = 1.0f;
        static constexpr float offset = 0.0f;
        OVSPEC_INLINE_MEMBER Vec raw(std::size_t d) const {
            return (to_float(load_as<ByteVec>(data + d)) - load(zero_points + d)) * load(scales + d);
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

// Fetches one block into the cache while another is worked on, a few lines per token: a burst of all its
// lines would fill the processor's miss queue and stop everything else.
struct Prefetch {
    const std::uint8_t* at;
    std::size_t bytes_per_token;

    Prefetch(const CacheView& cache, const std::uint8_t* block)
        : at(block), bytes_per_token(cache.block_bytes / block_size) {}

    OVSPEC_INLINE_MEMBER void tokens(std::size_t count) {
        const std::size_t bytes = count * bytes_per_token;
        for (std::size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(at + i);
        at += bytes;
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

} // namespace OVSPEC_ISA
} // namespace ovspec
