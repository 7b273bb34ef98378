#include "block_select/kernel.hpp"

#include "common/dot.hpp"
#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {
namespace {

// Lower than any score, and far from where sums overflow.
constexpr float lowest = -1e30f;
constexpr float largest = 127.0f;

std::size_t padded(std::size_t queries) {
    return (queries + lanes - 1) / lanes * lanes;
}

// A query's scale and the sum of its channels; its bytes go to every `stride`-th place, four channels each.
// A query that is not finite becomes one of zeros: it looks at all tokens alike.
void pack_query(const float* query, std::size_t size, float scale, std::int8_t* to, std::size_t stride,
                float& unit, float& sum) {
    float most = 0.0f;
    bool finite = true;
    for (std::size_t d = 0; d < size; d++) {
        const float amount = query[d] < 0.0f ? -query[d] : query[d];
        finite = finite && amount < __builtin_inff();
        most = amount > most ? amount : most;
    }
    const float step = finite ? most / largest : 0.0f, inverse = step >= 1e-37f ? 1.0f / step : 0.0f;
    std::int32_t total = 0;
    for (std::size_t d = 0; d < size; d++) {
        const float shifted = (inverse == 0.0f ? 0.0f : query[d] * inverse) + 12582912.0f; // as in pack
        const std::int32_t number = load_as<std::int32_t>(&shifted) - 0x4b400000;
        to[d / 4 * stride + d % 4] = (std::int8_t)number;
        total += number;
    }
    unit = inverse == 0.0f ? 0.0f : step * scale;
    sum = unit * (float)total;
}

void pack(const ScoreCall& call, std::size_t head) {
    std::int8_t* bytes = call.bytes + head * call.padded * call.size;
    float* scales = call.scales + head * 2 * call.padded;
    __builtin_memset(bytes, 0, call.padded * call.size);
    __builtin_memset(scales, 0, 2 * call.padded * sizeof(float));
    const std::size_t width = call.kv_heads * call.group * call.size;
    for (std::size_t i = 0; i < call.queries(); i++) {
        const float* query =
            call.query + i / call.group * width + (head * call.group + i % call.group) * call.size;
        std::int8_t* tile = bytes + i / lanes * lanes * call.size + i % lanes * 4;
        pack_query(query, call.size, call.scale, tile, lanes * 4, scales[i], scales[call.padded + i]);
    }
}

// The queries of a tile, times the parts of a summary.
struct Tile {
    const std::int8_t* bytes;
    Vec scale, sum;

    OVSPEC_INLINE_MEMBER Tile(const ScoreCall& call, std::size_t head, std::size_t first)
        : bytes(call.bytes + (head * call.padded + first) * call.size),
          scale(load(call.scales + head * 2 * call.padded + first)),
          sum(load(call.scales + (head * 2 + 1) * call.padded + first)) {}

    OVSPEC_INLINE_MEMBER void products(const std::uint8_t* summary, std::size_t size, Vec* to) const {
        IVec totals[summary_parts] = {};
        const std::size_t half = size / 2;
        const std::uint8_t* numbers = summary + 2 * summary_parts * sizeof(float);
        const std::int8_t *low = bytes, *high = bytes + half * lanes;
        for (std::size_t d = 0; d < half; d += 4) {
            const IVec of_low = load_as<IVec>(low + d * lanes), of_high = load_as<IVec>(high + d * lanes);
#pragma GCC unroll 4
            for (std::size_t part = 0; part < summary_parts; part++) {
                const UVec both = (UVec)splat_bytes(numbers + part * half + d);
                totals[part] = dot(totals[part], (IVec)(both & 0x0f0f0f0fu), of_low);
                totals[part] = dot(totals[part], (IVec)(both >> 4 & 0x0f0f0f0fu), of_high);
            }
        }
        const float *steps = (const float*)summary, *zeros = steps + summary_parts;
#pragma GCC unroll 4
        for (std::size_t part = 0; part < summary_parts; part++)
            to[part] =
                fused(__builtin_convertvector(totals[part], Vec), scale * steps[part], sum * zeros[part]);
    }
};

OVSPEC_INLINE std::size_t tokens_of(const ScoreCall& call, std::size_t block) {
    const std::size_t left = call.past - block * block_size;
    return left < block_size ? left : block_size;
}

// One tile's weights of the blocks begin .. end, a chunk.
template <bool linear>
OVSPEC_INLINE void weigh_tile(const ScoreCall& call, std::size_t head, std::size_t first, std::size_t begin,
                              std::size_t end) {
    const Tile tile(call, head, first);
    const std::size_t bytes = summary_bytes(call.size);
    float* weights = call.weights + head * call.blocks() * call.padded + first;
    Vec scores[linear ? 1 : score_blocks][summary_parts], highest = splat(lowest);
    for (std::size_t b = begin; b < end; b++) {
        const std::uint8_t* summary =
            call.summary + ((std::size_t)call.table[b] * call.kv_heads + head) * bytes;
        Vec* of_block = scores[linear ? 0 : b - begin];
        tile.products(summary, call.size, of_block);
        Vec mean = {};
        for (std::size_t part = 0; part < summary_parts; part++) {
            const std::size_t count = tokens_of_part(tokens_of(call, b), part);
            if (count == 0)
                continue;
            if constexpr (linear) {
                mean = fused(of_block[part], splat((float)count), mean);
            } else {
                const IVec finite = (of_block[part] < __builtin_inff()) & (of_block[part] > lowest);
                of_block[part] = finite ? of_block[part] : splat(lowest);
                highest = max(highest, of_block[part]);
            }
        }
        if constexpr (linear)
            store(weights + b * call.padded, mean * (1.0f / (float)tokens_of(call, b)));
    }
    if constexpr (linear)
        return;
    for (std::size_t b = begin; b < end; b++) {
        Vec weight = {};
        for (std::size_t part = 0; part < summary_parts; part++) {
            const std::size_t count = tokens_of_part(tokens_of(call, b), part);
            if (count > 0)
                weight =
                    fused(exp_nonpositive(scores[b - begin][part] - highest), splat((float)count), weight);
        }
        store(weights + b * call.padded, weight);
    }
    store(call.highest + (head * call.chunks() + begin / score_blocks) * call.padded + first, highest);
}

void weigh(const ScoreCall& call, std::size_t chunk) {
    const std::size_t begin = chunk * score_blocks, past = begin + score_blocks;
    const std::size_t end = past < call.blocks() ? past : call.blocks();
    for (std::size_t head = 0; head < call.kv_heads; head++)
        for (std::size_t first = 0; first < call.padded; first += lanes) {
            if (call.linear)
                weigh_tile<true>(call, head, first, begin, end);
            else
                weigh_tile<false>(call, head, first, begin, end);
        }
}

// What to multiply the weights of every chunk with, so that they are shares of all attention of a query;
// takes the place of `highest`, `[chunks, padded]`. Queries beyond the last one count for nothing.
void find_factors(const ScoreCall& call, const float* weights, float* highest, std::size_t first) {
    Vec most = splat(lowest), total = {};
    for (std::size_t c = 0; c < call.chunks(); c++)
        most = max(most, load(highest + c * call.padded + first));
    for (std::size_t c = 0; c < call.chunks(); c++) {
        const Vec factor = exp_nonpositive(load(highest + c * call.padded + first) - most);
        Vec sum = {};
        for (std::size_t b = c * score_blocks; b < call.blocks() && b < (c + 1) * score_blocks; b++)
            sum += load(weights + b * call.padded + first);
        total = fused(sum, factor, total);
        store(highest + c * call.padded + first, factor);
    }
    const IVec used = lane_numbers() + (std::int32_t)first < (std::int32_t)call.queries();
    const Vec share = used ? 1.0f / total : Vec{};
    for (std::size_t c = 0; c < call.chunks(); c++)
        store(highest + c * call.padded + first, load(highest + c * call.padded + first) * share);
}

void add_up(const ScoreCall& call, std::size_t head) {
    const float* weights = call.weights + head * call.blocks() * call.padded;
    float* factors = call.highest + head * call.chunks() * call.padded;
    float* scores = call.scores + head * call.blocks();
    for (std::size_t first = 0; !call.linear && first < call.padded; first += lanes)
        find_factors(call, weights, factors, first);
    const float share = 1.0f / (float)call.queries();
    for (std::size_t b = 0; b < call.blocks(); b++) {
        Vec total = {};
        for (std::size_t first = 0; first < call.padded; first += lanes) {
            const Vec weight = load(weights + b * call.padded + first);
            total = call.linear
                        ? total + weight
                        : fused(weight, load(factors + b / score_blocks * call.padded + first), total);
        }
        scores[b] = call.linear ? sum(total) * share : sum(total);
    }
}

} // namespace

const SelectKernels select_kernels = {padded, pack, weigh, add_up};

} // namespace ovspec::OVSPEC_ISA
