// Softmax, weights and values of the integer path.
#pragma once

#ifdef OVSPEC_DOT

#include "verify_attention/integer_scratch.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace integer_path {

// Scales and zero points of a block's rows; 0 for slots that hold nothing.
static void read_parameters(const CacheView& cache, const std::uint8_t* block, std::size_t tokens,
                            float* scales, float* zeros) {
    for (std::size_t t = 0; t < tokens; t++) {
        scales[t] = load_as<float>(block + t * cache.row_bytes);
        zeros[t] = load_as<float>(block + t * cache.row_bytes + 4);
    }
    for (std::size_t t = tokens; t < block_size; t++)
        scales[t] = zeros[t] = 0.0f;
}

// What all groups share: parameters of the tokens, and the values' bytes in dot()'s order.
static void read_pair(const Chunk& c, Pair& pair) {
    const CacheView &keys = c.call.keys, &values = c.call.values;
    const Scratch& s = c.scratch;
    for (std::size_t b = 0; b < pair.count; b++) {
        const Block& block = pair.blocks[b];
        const std::size_t slot = b * block_size;
        read_parameters(values, block.values, block.tokens, s.value_scales + slot, s.value_zeros + slot);
        if (keys.format == CacheFormat::u8_token)
            read_parameters(keys, block.keys, block.tokens, s.key_scales + slot, s.key_zeros + slot);
        for (std::size_t t = 0; t < block_size; t += 4) {
            const std::uint8_t* row = block.values + t * values.row_bytes + 8;
            const std::uint8_t* rows[4] = {row, row + values.row_bytes, row + 2 * values.row_bytes,
                                           row + 3 * values.row_bytes};
            std::uint8_t* to = s.values + (slot + t) * s.value_stride;
            for (std::size_t d = 0; d < values.size; d += 4 * lanes) {
                interleave(rows, d, values.size - d, to + 4 * d);
                pair.fetch.tick();
            }
        }
    }
    Vec largest = {};
    for (std::size_t t = 0; t < pair.slots(); t += lanes)
        largest = max(magnitude(load(s.value_scales + t)), largest);
    const float most = max_lane(largest);
    pair.value_unit = most / max_weight;
    const float factor = most > 1e-30f ? max_weight / most : 0.0f;
    for (std::size_t t = 0; t < pair.slots(); t += lanes)
        store(s.value_scales + t, load(s.value_scales + t) * factor);
}

// Folds a vector of half groups: the two tokens that it holds become one value per row, twice.
template <bool half> OVSPEC_INLINE Vec max_of_rows(Vec x) {
    return half ? max(x, swap_halves(x)) : x;
}

template <bool half> OVSPEC_INLINE Vec sum_of_rows(Vec x) {
    return half ? x + swap_halves(x) : x;
}

// Online softmax over the slots of a pair. Scores become weights relative to the rows' maxima in the pair;
// `older` and `newer` are the factors of the output so far and of what these weights give.
template <bool half>
__attribute__((noinline)) void softmax(float* scores, std::size_t slots, float* maxima, float* sums,
                                       Vec* older, Vec* newer, Fetch& fetch) {
    const std::size_t floats = slots * (half ? half_lanes : lanes);
    Vec best[2] = {splat(no_maximum), splat(no_maximum)};
    for (std::size_t i = 0; i < floats; i += 2 * lanes) {
        best[0] = max(load(scores + i), best[0]);
        best[1] = max(load(scores + i + lanes), best[1]);
    }
    const Vec here = max_of_rows<half>(max(best[0], best[1]));
    const Vec before = load_rows<half>(maxima), now = max(here, before);
    *older = exp_nonpositive(before - now);
    *newer = exp_nonpositive(here - now);
    Vec total[2] = {};
    for (std::size_t i = 0; i < floats; i += 2 * lanes) {
        fetch.tick();
#pragma GCC unroll 2
        for (std::size_t v = 0; v < 2; v++) {
            const Vec weight = exp_nonpositive(load(scores + i + v * lanes) - here);
            store(scores + i + v * lanes, weight);
            total[v] += weight;
        }
    }
    store_rows<half>(maxima, now);
    store_rows<half>(sums, load_rows<half>(sums) * *older + sum_of_rows<half>(total[0] + total[1]) * *newer);
}

// Weights times the values' scales as 16-bit numbers; `bias` is their sum times the zero points.
template <bool half>
__attribute__((noinline)) void pack_weights(const float* weights, std::size_t slots, const float* scales,
                                            const float* zeros, IVec* parts, Vec* bias, Fetch& fetch) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    Vec sum = {}, centred = {};
    for (std::size_t t = 0; t < slots; t += 4) {
        fetch.tick();
        UVec x[4];
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; i++) {
            const Vec weight = load_rows<half>(weights + (t + i) * width) * scales[t + i];
            const Vec shifted = weight + rounder;
            x[i] = (UVec)shifted;
            sum += shifted - rounder;
            centred += weight * (zeros[t + i] - centre);
        }
        store_parts<half>(parts + t / 4 * (half ? 1 : 2), x[0], x[1], x[2], x[3]);
    }
    *bias = sum * centre + centred;
}

// out = out * older + (values of the pair times their weights - bias) * newer
template <bool half>
__attribute__((noinline)) void add_values(const Chunk& c, Pair& pair, std::size_t first, const Vec* older_,
                                          const Vec* newer_, const Vec* bias) {
    constexpr std::size_t width = half ? half_lanes : lanes;
    const Scratch& s = c.scratch;
    const std::size_t size = c.call.values.size;
    const Vec older = *older_, newer = *newer_ * pair.value_unit, constant = *bias * newer;
#ifdef OVSPEC_AMX
    constexpr std::size_t P = half ? 1 : 2;
    for (std::size_t k = pair.slots() / 4; k < pair_slots / 4; k++)
        for (std::size_t p = 0; p < P; p++)
            s.weight_parts[k * P + p] = IVec{};
    for (std::size_t p = 0; p < P; p++)
        tiles::transpose(s.weight_parts + p, P, s.weight_rows + p * lanes);
    _tile_loadd(4, s.weight_rows, sizeof(IVec));
    if constexpr (!half)
        _tile_loadd(5, s.weight_rows + lanes, sizeof(IVec));
    const std::size_t stride = c.g.value_stride;
    for (std::size_t d = 0; d < size; d += lanes) {
        tiles::value_tile<half>(s.values + 4 * d, 4 * s.value_stride, s.sums);
        float* out = c.partial.out + first * stride + d;
        for (std::size_t r = 0; r < width; r++) {
            if (r % 4 == 0)
                pair.fetch.tick();
            const Vec x = __builtin_convertvector((s.sums[r] << 8) + s.sums[width + r], Vec);
            store(out + r * stride, x * newer[r] + (load(out + r * stride) * older[r] - constant[r]));
        }
    }
#else
    float* out = c.partial.out + first * size;
    dot_rows<half>(s.values, 4, 4 * s.value_stride, s.weight_parts, pair.slots() / 4, size, pair.fetch,
                   [&](std::size_t d, Vec x) __attribute__((always_inline)) {
                       float* at = out + d * width;
                       store(at, x * newer + (load(at) * older - constant));
                   });
#endif
}

// Ticks of read_pair, of a whole pair.
OVSPEC_INLINE std::size_t read_ticks(std::size_t value_size) {
    return pair_slots / 4 * ((value_size + 4 * lanes - 1) / (4 * lanes));
}

// Ticks of softmax, pack_weights and add_values for a group of `width` rows, of a whole pair.
OVSPEC_INLINE std::size_t value_ticks(std::size_t width, std::size_t value_size) {
    const std::size_t weights = pair_slots * width / (2 * lanes) + pair_slots / 4;
#ifdef OVSPEC_AMX
    return weights + (value_size + lanes - 1) / lanes * (width / 4);
#else
    return weights + dot_ticks(width < lanes, pair_slots / 4, value_size);
#endif
}

} // namespace integer_path
} // namespace OVSPEC_ISA
} // namespace ovspec

#endif
