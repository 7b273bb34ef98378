// Sums over channels with down weights of 8 and 4 bits, in integers. A 32-bit lane belongs to one output and
// holds the weights of four channels. The kept channels need not be neighbours: their weights are interleaved
// in scratch memory, once for all rows.
#pragma once

#include "common/digits16.hpp"
#include "gated_mlp/kernel.hpp"

namespace ovspec::OVSPEC_ISA::integer_columns {

constexpr std::size_t header = 64;
constexpr std::size_t width = 64; // outputs that four channels' interleaved vectors hold
// Channels that are interleaved at once: for down_width outputs they fit in the L1 cache.
constexpr std::size_t batch = 128;
// Channels that a task prefetches ahead in its first batch.
constexpr std::size_t ahead = 32;
constexpr std::size_t tile_rows = lanes == 16 ? 4 : 3;

OVSPEC_INLINE std::size_t round_up(std::size_t x, std::size_t step) {
    return (x + step - 1) / step * step;
}

// A packed row: its unit (f32), then per run the sum of its integers (f32), then high digits, then low ones.
struct InnerLayout {
    std::size_t digits; // where the high ones start
    std::size_t stride; // from a high digit to its low one

    explicit InnerLayout(const ChannelView& view)
        : digits(header + round_up(view.run_count * sizeof(float), 64)), stride(round_up(view.count, 64)) {}

    std::size_t bytes() const { return digits + 2 * stride; }
};

OVSPEC_INLINE void pack(const ChannelView& view, const float* values, std::uint8_t* packed) {
    const digits16::Unit unit = digits16::unit_of(values, view.count);
    const InnerLayout layout(view);
    auto* high = (std::int8_t*)packed + layout.digits;
    auto* low = high + layout.stride;
    digits16::split_all(values, view.count, unit.inverse, high, low);
    __builtin_memcpy(packed, &unit.value, sizeof(float));
    auto* sums = (float*)(packed + header);
    for (std::size_t i = 0; i < view.run_count; i++) {
        std::int32_t highs = 0, lows = 0;
        for (std::size_t k = view.runs[i].begin; k < view.runs[i].end; k++) {
            highs += high[k];
            lows += low[k];
        }
        sums[i] = fused((float)highs, 256.0f, (float)lows);
    }
}

// Bytes of four channels, 16 outputs each, from 64 in the order of the weights' layout: to[m] is for the
// outputs 16 m to 16 m + 15, four bytes of each.
OVSPEC_INLINE void interleave(const std::uint8_t* const* channels, std::size_t at, std::uint8_t shift,
                              bool nibbles, std::uint8_t* to, std::size_t step) {
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
    __m512i x[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        x[c] = _mm512_loadu_si512(channels[c] + at);
        if (nibbles)
            x[c] = _mm512_and_si512(_mm512_srli_epi16(x[c], shift), _mm512_set1_epi8(15));
    }
    const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
    _mm512_store_si512(to, _mm512_unpacklo_epi16(a, c));
    _mm512_store_si512(to + step, _mm512_unpackhi_epi16(a, c));
    _mm512_store_si512(to + 2 * step, _mm512_unpacklo_epi16(b, d));
    _mm512_store_si512(to + 3 * step, _mm512_unpackhi_epi16(b, d));
#else
    for (std::size_t half = 0; half < 2; half++) {
        __m256i x[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            x[c] = _mm256_loadu_si256((const __m256i*)(channels[c] + at + 32 * half));
            if (nibbles)
                x[c] = _mm256_and_si256(_mm256_srli_epi16(x[c], shift), _mm256_set1_epi8(15));
        }
        const __m256i a = _mm256_unpacklo_epi8(x[0], x[1]), b = _mm256_unpackhi_epi8(x[0], x[1]);
        const __m256i c = _mm256_unpacklo_epi8(x[2], x[3]), d = _mm256_unpackhi_epi8(x[2], x[3]);
        std::uint8_t* at_half = to + 32 * half;
        _mm256_store_si256((__m256i*)at_half, _mm256_unpacklo_epi16(a, c));
        _mm256_store_si256((__m256i*)(at_half + step), _mm256_unpackhi_epi16(a, c));
        _mm256_store_si256((__m256i*)(at_half + 2 * step), _mm256_unpacklo_epi16(b, d));
        _mm256_store_si256((__m256i*)(at_half + 3 * step), _mm256_unpackhi_epi16(b, d));
    }
#endif
}

// Interleaved weights of up to `batch` channels and down_width outputs: `[outputs / 16, channels / 4, 64]`.
struct Scratch {
    alignas(64) std::uint8_t bytes[down_width * batch];
};

constexpr std::size_t panel = batch / 4 * 64; // bytes of 16 outputs

// The bytes of a channel's weights that belong to a task's outputs, from `first` on.
struct Part {
    std::size_t offset, bytes;

    Part(const ChannelMatrix& m, std::size_t first, std::size_t count)
        : offset(m.format == WeightFormat::u4 ? first / 2 : first),
          bytes(m.format == WeightFormat::u4 ? down_width / 2 : round_up(count, width)) {}
};

// Prefetches weights that are needed later, `part` of one channel at a time.
struct Ahead {
    const ChannelMatrix& m;
    const std::uint32_t* channels;
    std::size_t left;
    Part part;

    OVSPEC_INLINE_MEMBER void step() {
        if (left == 0)
            return;
        const std::uint8_t* from = m.data + *channels++ * m.row_bytes + part.offset;
        left--;
        for (std::size_t line = 0; line < part.bytes; line += 64)
            __builtin_prefetch(from + line, 0, 2);
    }
};

// `asks`: these weights have not been prefetched.
OVSPEC_INLINE void fill(const ChannelMatrix& m, const ChannelView& view, std::size_t begin, std::size_t end,
                        std::size_t first, std::size_t count, bool asks, Scratch& scratch) {
    const bool nibbles = m.format == WeightFormat::u4;
    const Part part(m, first, count);
    const std::size_t near = end - begin < ahead ? end - begin : ahead;
    Ahead later{m, view.channels + begin + near, asks ? end - begin - near : 0, part};
    for (std::size_t k = begin; k < end; k += 4) {
        const std::uint8_t* channels[4];
#pragma GCC unroll 4
        for (std::size_t c = 0; c < 4; c++) {
            channels[c] = m.data + view.channels[k + c] * m.row_bytes + part.offset;
            later.step();
        }
        std::uint8_t* to = scratch.bytes + (k - begin) / 4 * 64;
        if (nibbles) {
            interleave(channels, 0, 0, true, to, panel);
            interleave(channels, 0, 4, true, to + 4 * panel, panel);
        } else {
            for (std::size_t at = 0; at < part.bytes; at += width)
                interleave(channels, at, 0, false, to + at / 16 * panel, panel);
        }
    }
}

// acc[r * 2 + t]: sums of R rows for two vectors of outputs.
template <std::size_t R>
__attribute__((noinline)) void products(const std::uint8_t* first, const std::uint8_t* second,
                                        std::size_t fours, const std::uint8_t* const* digits,
                                        std::size_t stride, Ahead& ahead, Vec* acc) {
    IVec high[2 * R], low[2 * R];
    clear(high);
    clear(low);
    for (std::size_t k = 0; k < fours; k++) {
        ahead.step();
        const IVec a = load_as<IVec>(first + k * 64), b = load_as<IVec>(second + k * 64);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < R; r++) {
            const IVec high_digits = splat_bytes(digits[r] + 4 * k);
            high[2 * r] = dot(high[2 * r], a, high_digits);
            high[2 * r + 1] = dot(high[2 * r + 1], b, high_digits);
            const IVec low_digits = splat_bytes(digits[r] + stride + 4 * k);
            low[2 * r] = dot(low[2 * r], a, low_digits);
            low[2 * r + 1] = dot(low[2 * r + 1], b, low_digits);
        }
    }
    digits16::join(high, low, acc);
}

// Part of a run: entries begin to end of the view, interleaved in scratch.
struct Batch {
    const ChannelMatrix& m;
    const InnerLayout& layout;
    const Scratch& scratch;
    std::size_t index, run, group, begin, end;
    bool counts_sum; // first batch of its run: the run's sum of integers is added here, once
    std::size_t first, count;
    Ahead& ahead; // prefetches the next batch while this one is multiplied

    // Of a vector of outputs, `h` from the task's first.
    const std::uint8_t* weights(std::size_t h) const { return scratch.bytes + h / 16 * panel + h % 16 * 4; }

    float run_sum(const std::uint8_t* row) const {
        return counts_sum ? load_as<float>(row + header + run * sizeof(float)) : 0.0f;
    }
};

// Scales and zero points of a vector of outputs, `h` from the task's first.
struct Outputs {
    std::size_t left;
    Vec scale, zero_point;

    OVSPEC_INLINE_MEMBER Outputs(const Batch& batch, std::size_t h)
        : left(batch.count - h < lanes ? batch.count - h : lanes) {
        const std::size_t entry = batch.group * batch.m.size + batch.first + h;
        const auto* scales = (const std::uint16_t*)batch.m.scales + entry;
        const std::uint8_t* zero_points = batch.m.zero_points + entry;
        scale = from_f16(left == lanes ? load_as<HalfVec>(scales) : load_part<HalfVec>(scales, left));
        zero_point =
            to_float(left == lanes ? load_as<ByteVec>(zero_points) : load_part<ByteVec>(zero_points, left));
    }

    OVSPEC_INLINE_MEMBER void add(Vec products, float sum, float unit, float* y) const {
        const Vec centred = fused(-zero_point, splat(sum), products), factor = scale * unit;
        if (left == lanes)
            store(y, fused(centred, factor, load(y)));
        else
            store_part(y, fused(centred, factor, load_part<Vec>(y, left)), left);
    }
};

// Adds R rows' products to y.
template <std::size_t R>
OVSPEC_INLINE void add(const Batch& batch, const std::uint8_t* const* rows, float* y, std::size_t stride) {
    const std::uint8_t* digits[R];
    for (std::size_t r = 0; r < R; r++)
        digits[r] = rows[r] + batch.layout.digits + batch.begin;
    for (std::size_t h = 0; h < batch.count; h += 2 * lanes) {
        Vec acc[2 * R];
        products<R>(batch.weights(h), batch.weights(h + lanes), (batch.end - batch.begin) / 4, digits,
                    batch.layout.stride, batch.ahead, acc);
        for (std::size_t t = 0; t < 2 && h + t * lanes < batch.count; t++) {
            const Outputs outputs(batch, h + t * lanes);
            for (std::size_t r = 0; r < R; r++)
                outputs.add(acc[2 * r + t], batch.run_sum(rows[r]), load_as<float>(rows[r]),
                            y + r * stride + h + t * lanes);
        }
    }
}

// body(batch) for all channels of the view, in their order, for the outputs first to first + count,
// down_width of them at once.
template <class Body>
OVSPEC_INLINE void for_batches(const ChannelMatrix& m, const ChannelView& view, std::size_t first,
                               std::size_t count, const Body& body) {
    const InnerLayout layout(view);
    Scratch scratch;
    std::size_t index = 0;
    for (std::size_t run = 0; run < view.run_count; run++) {
        const ChannelRun& r = view.runs[run];
        for (std::size_t begin = r.begin; begin < r.end; begin += batch) {
            const std::size_t end = r.end - begin < batch ? r.end : begin + batch;
            for (std::size_t h = 0; h < count; h += down_width) {
                const std::size_t some = count - h < down_width ? count - h : down_width;
                fill(m, view, begin, end, first + h, some, index == 0, scratch);
                const std::size_t behind = view.count - end < batch ? view.count - end : batch;
                Ahead ahead{m, view.channels + end, behind, Part(m, first + h, some)};
                body(Batch{m, layout, scratch, index, run, r.group, begin, end, begin == r.begin, first + h,
                           some, ahead});
            }
            index++;
        }
    }
}

OVSPEC_INLINE void down(const ChannelMatrix& m, const ChannelView& view, std::size_t first, std::size_t count,
                        const std::uint8_t* const* rows, std::size_t row_count, float* y,
                        std::size_t stride) {
    for_batches(m, view, first, count, [&](const Batch& batch) {
        float* to = y + (batch.first - first);
        std::size_t row = 0;
        for (; row + tile_rows <= row_count; row += tile_rows)
            add<tile_rows>(batch, rows + row, to + row * stride, stride);
        for (; row + 2 <= row_count; row += 2)
            add<2>(batch, rows + row, to + row * stride, stride);
        if (row < row_count)
            add<1>(batch, rows + row, to + row * stride, stride);
    });
}

} // namespace ovspec::OVSPEC_ISA::integer_columns
