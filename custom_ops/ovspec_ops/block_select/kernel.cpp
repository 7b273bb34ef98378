#include "block_select/kernel.hpp"

#include "common/dot.hpp"
#include "common/simd.hpp"
#include "common/transpose.hpp"

namespace ovspec::OVSPEC_ISA {
namespace {

// Lower than any score, and far from where sums overflow.
constexpr float lowest = -1e30f;
constexpr float largest = 127.0f;

std::size_t padded(std::size_t queries) {
    return (queries + lanes - 1) / lanes * lanes;
}

// A query's bytes, its scale and the sum of its channels. A query that is not finite becomes one of zeros: it
// looks at all tokens alike.
void pack_query(const float* query, std::size_t size, float scale, std::int8_t* to, float& unit, float& sum) {
    const auto channels = [&](std::size_t d) __attribute__((always_inline)) {
        return load_some(query + d, size - d < lanes ? size - d : lanes);
    };
    Vec most = {};
    for (std::size_t d = 0; d < size; d += lanes) {
        const Vec amount = (Vec)((IVec)channels(d) & 0x7fffffff);
        most = max(amount < __builtin_inff() ? amount : splat(__builtin_inff()), most);
    }
    const float amount = max_lane(most), step = amount < __builtin_inff() ? amount / largest : 0.0f;
    const float inverse = step >= 1e-37f ? 1.0f / step : 0.0f;
    IVec total = {};
    for (std::size_t d = 0; d < size; d += lanes) {
        const Vec shares = inverse == 0.0f ? Vec{} : channels(d) * inverse;
        const IVec numbers = (IVec)(shares + 12582912.0f) - 0x4b400000; // as in byte_values.hpp
        std::int8_t rounded[lanes];
        store_low_bytes(rounded, numbers);
        __builtin_memcpy(to + d, rounded, size - d < lanes ? size - d : lanes);
        total += numbers;
    }
    unit = inverse == 0.0f ? 0.0f : step * scale;
    sum = unit * OVSPEC_ISA::sum(__builtin_convertvector(total, Vec)); // exact, below 2^24
}

void pack(const ScoreCall& call, std::size_t head) {
    std::int8_t* bytes = call.bytes + head * call.queries() * call.size;
    float* scales = call.scales + head * 2 * call.queries();
    const std::size_t width = call.kv_heads * call.group * call.size;
    for (std::size_t i = 0; i < call.queries(); i++) {
        const float* query =
            call.query + i / call.group * width + (head * call.group + i % call.group) * call.size;
        pack_query(query, call.size, call.scale, bytes + i * call.size, scales[i],
                   scales[call.queries() + i]);
    }
}

// Blocks of a chunk lie side by side, one to a lane.
constexpr std::size_t chunk_vectors = score_blocks / lanes;

// Vectors of one head's summaries of `lanes` blocks: scales, zero points, and the numbers: for four bytes the
// lower halves and then the upper ones.
constexpr std::size_t summary_columns(std::size_t size) {
    return 2 * summary_parts + summary_parts * size / 4;
}

// Summaries of the blocks of a chunk as columns, one head's at a time. Lanes behind the last block repeat it
// without tokens.
struct Columns {
    const ScoreCall& call;
    const std::size_t bytes; // of a summary
    std::size_t vectors;     // of blocks
    // The blocks, and those of the next chunk.
    const std::uint8_t *at[score_blocks], *ahead[score_blocks];
    Vec tokens[chunk_vectors][summary_parts];
    IVec numbers[chunk_vectors * summary_columns(1024)]; // of the largest head

    Columns(const ScoreCall& of, std::size_t chunk) : call(of), bytes(summary_bytes(of.size)) {
        const std::size_t begin = chunk * score_blocks, left = call.blocks() - begin;
        vectors = left < score_blocks ? (left + lanes - 1) / lanes : chunk_vectors;
        for (std::size_t i = 0; i < score_blocks; i++) {
            at[i] = block(begin + i);
            ahead[i] = block(begin + score_blocks + i);
        }
        for (std::size_t v = 0; v < vectors; v++)
            for (std::size_t part = 0; part < summary_parts; part++)
                tokens[v][part] = tokens_of(begin + v * lanes, part);
    }

    const std::uint8_t* block(std::size_t number) const {
        const std::size_t last = call.blocks() - 1;
        return call.summary + (std::size_t)call.table[number < last ? number : last] * call.kv_heads * bytes;
    }

    // Of a part of `lanes` blocks.
    OVSPEC_INLINE_MEMBER Vec tokens_of(std::size_t block, std::size_t part) const {
        float counts[lanes];
        for (std::size_t i = 0; i < lanes; i++) {
            const std::size_t before = (block + i) * block_size;
            counts[i] = call.past > before ? (float)tokens_of_part(call.past - before, part) : 0.0f;
        }
        return load(counts);
    }

    // Reads those of a head, while those of the next one come into the cache, or of the next chunk's first.
    void read(std::size_t head) {
        const bool ends = head + 1 == call.kv_heads;
        for (std::size_t v = 0; v < vectors; v++) {
            const std::uint8_t *const *rows = at + v * lanes, *const *next = (ends ? ahead : at) + v * lanes;
            const std::size_t first = head * bytes, next_first = ends ? 0 : first + bytes;
            IVec* to = numbers + v * summary_columns(call.size);
            for (std::size_t d = 0; d < bytes; d += 16) { // whole quarters, whatever the size of a head
                if (d % 64 == 0)
                    for (std::size_t i = 0; i < lanes; i++)
                        __builtin_prefetch(next[i] + next_first + d);
                IVec four[4];
                transpose_quarter([&](std::size_t i)
                                      __attribute__((always_inline)) { return rows[i] + first + d; },
                                  four, 1);
#pragma GCC unroll 4
                for (std::size_t j = 0; j < 4; j++) {
                    if (d < 2 * summary_parts * sizeof(float)) {
                        *to++ = four[j];
                        continue;
                    }
                    *to++ = four[j] & 0x0f0f0f0f;
                    *to++ = (IVec)((UVec)four[j] >> 4) & 0x0f0f0f0f;
                }
            }
        }
    }

    const IVec* of(std::size_t vector) const { return numbers + vector * summary_columns(call.size); }
};

// Queries whose sums stay in registers.
constexpr std::size_t queries_at_once = lanes == 16 ? 4 : 2;

// R queries of one KV head, from number `first` on.
template <std::size_t R> struct Queries {
    const std::int8_t* bytes;
    Vec scale[R], sum[R];
    std::size_t size;

    OVSPEC_INLINE_MEMBER Queries(const ScoreCall& call, std::size_t head, std::size_t first)
        : bytes(call.bytes + (head * call.queries() + first) * call.size), size(call.size) {
        const float* scales = call.scales + head * 2 * call.queries() + first;
        for (std::size_t r = 0; r < R; r++) {
            scale[r] = splat(scales[r]);
            sum[r] = splat(scales[call.queries() + r]);
        }
    }

    // Times the parts of `lanes` blocks.
    OVSPEC_INLINE_MEMBER void products(const IVec* columns, Vec (*to)[summary_parts]) const {
        IVec totals[R][summary_parts] = {};
        const std::size_t half = size / 2;
        const IVec *steps = columns, *zeros = steps + summary_parts, *numbers = zeros + summary_parts;
        for (std::size_t d = 0; d < half; d += 4) {
            IVec low[R], high[R];
#pragma GCC unroll 4
            for (std::size_t r = 0; r < R; r++) {
                const auto* at = (const std::uint8_t*)bytes + r * size + d;
                low[r] = splat_bytes(at);
                high[r] = splat_bytes(at + half);
            }
#pragma GCC unroll 4
            for (std::size_t part = 0; part < summary_parts; part++) {
                const IVec* of_part = numbers + (part * half + d) / 2;
#pragma GCC unroll 4
                for (std::size_t r = 0; r < R; r++)
                    totals[r][part] = dot_halves(totals[r][part], of_part[0], low[r], of_part[1], high[r]);
            }
        }
#pragma GCC unroll 4
        for (std::size_t r = 0; r < R; r++)
#pragma GCC unroll 4
            for (std::size_t part = 0; part < summary_parts; part++)
                to[r][part] = fused(__builtin_convertvector(totals[r][part], Vec),
                                    scale[r] * (Vec)steps[part], sum[r] * (Vec)zeros[part]);
    }
};

// Means of R queries' scores of the blocks of a chunk.
template <std::size_t R>
__attribute__((noinline)) void average(const ScoreCall& call, const Columns& columns, std::size_t head,
                                       std::size_t first, float* weights) {
    const Queries<R> queries(call, head, first);
    for (std::size_t v = 0; v < columns.vectors; v++) {
        Vec scores[R][summary_parts], means[R] = {}, tokens = {};
        queries.products(columns.of(v), scores);
        for (std::size_t part = 0; part < summary_parts; part++) {
            const Vec count = columns.tokens[v][part];
            tokens += count;
            for (std::size_t r = 0; r < R; r++)
                means[r] = count > 0.0f ? fused(scores[r][part], count, means[r]) : means[r];
        }
        const Vec share = 1.0f / tokens;
        for (std::size_t r = 0; r < R; r++)
            store(weights + r * score_blocks + v * lanes, means[r] * share);
    }
}

// Attention of R queries to the blocks of a chunk, relative to their highest scores there.
template <std::size_t R>
__attribute__((noinline)) void attend(const ScoreCall& call, const Columns& columns, std::size_t head,
                                      std::size_t first, float* weights, float* highest, float* sums) {
    const Queries<R> queries(call, head, first);
    Vec scores[chunk_vectors][R][summary_parts], most[R];
    for (std::size_t r = 0; r < R; r++)
        most[r] = splat(lowest);
    for (std::size_t v = 0; v < columns.vectors; v++) {
        queries.products(columns.of(v), scores[v]);
        for (std::size_t part = 0; part < summary_parts; part++) {
            const IVec present = columns.tokens[v][part] > 0.0f;
            for (std::size_t r = 0; r < R; r++) {
                Vec& score = scores[v][r][part];
                const Vec known = max(score, splat(lowest)); // in place of NaN too
                score = present & (known < __builtin_inff()) ? known : splat(lowest);
                most[r] = max(most[r], score);
            }
        }
    }
    for (std::size_t r = 0; r < R; r++) {
        highest[r] = max_lane(most[r]);
        most[r] = splat(highest[r]);
    }
    for (std::size_t v = 0; v < columns.vectors; v++) {
        Vec total[R] = {};
        for (std::size_t part = 0; part < summary_parts; part++) {
            const Vec count = columns.tokens[v][part];
            for (std::size_t r = 0; r < R; r++)
                total[r] = fused(exp_nonpositive(scores[v][r][part] - most[r]), count, total[r]);
        }
        for (std::size_t r = 0; r < R; r++)
            store(weights + r * score_blocks + v * lanes, total[r]);
    }
    float total[R] = {};
    for (std::size_t b = 0; b < columns.vectors * lanes; b++)
        for (std::size_t r = 0; r < R; r++)
            total[r] += weights[r * score_blocks + b];
    for (std::size_t r = 0; r < R; r++)
        sums[r] = total[r];
}

void weigh(const ScoreCall& call, std::size_t chunk) {
    Columns columns(call, chunk);
    for (std::size_t head = 0; head < call.kv_heads; head++) {
        columns.read(head);
        const std::size_t at = head * call.chunks() + chunk;
        for_even_parts<queries_at_once>(call.queries(), [&](auto R, std::size_t first) {
            float* weights = call.weights + (at * call.queries() + first) * score_blocks;
            if (call.linear)
                average<R>(call, columns, head, first, weights);
            else
                attend<R>(call, columns, head, first, weights, call.highest + at * call.padded + first,
                          call.sums + at * call.padded + first);
        });
    }
}

// What to multiply the weights of every chunk with, so that they are shares of all attention of a query;
// takes the place of `highest`, `[chunks, padded]`.
void find_factors(const ScoreCall& call, const float* sums, float* highest) {
    for (std::size_t first = 0; first < call.padded; first += lanes) {
        Vec most = splat(lowest), total = {};
        for (std::size_t at = first; at < call.chunks() * call.padded; at += call.padded)
            most = max(most, load(highest + at));
        for (std::size_t at = first; at < call.chunks() * call.padded; at += call.padded) {
            const Vec factor = exp_nonpositive(load(highest + at) - most);
            total = fused(load(sums + at), factor, total);
            store(highest + at, factor);
        }
        for (std::size_t at = first; at < call.chunks() * call.padded; at += call.padded)
            store(highest + at, load(highest + at) * (1.0f / total));
    }
}

void add_up(const ScoreCall& call, std::size_t head) {
    float* factors = call.highest + head * call.chunks() * call.padded;
    if (!call.linear)
        find_factors(call, call.sums + head * call.chunks() * call.padded, factors);
    const Vec share = splat(call.linear ? 1.0f / (float)call.queries() : 1.0f);
    for (std::size_t b = 0; b < call.blocks(); b += lanes) {
        const std::size_t chunk = b / score_blocks;
        const float* weights =
            call.weights + (head * call.chunks() + chunk) * call.queries() * score_blocks + b % score_blocks;
        Vec totals[lanes] = {};
        for (std::size_t i = 0; i < call.queries(); i++) {
            const Vec factor = splat(call.linear ? 1.0f : factors[chunk * call.padded + i]);
            totals[i % lanes] = fused(load(weights + i * score_blocks), factor, totals[i % lanes]);
        }
        const Vec scores = sum_across(totals) * share;
        const std::size_t left = call.blocks() - b;
        store_part(call.scores + head * call.blocks() + b, scores, left < lanes ? left : lanes);
    }
}

} // namespace

const SelectKernels select_kernels = {padded, pack, weigh, add_up};

} // namespace ovspec::OVSPEC_ISA
