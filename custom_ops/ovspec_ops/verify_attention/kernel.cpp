#include "verify_attention/kernel.hpp"

#include "verify_attention/narrow.hpp"
#include "verify_attention/wide.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace {

// Below every score, above -infinity: a row that has seen no key yet gives weights of 0, not NaN.
constexpr float no_maximum = -1e30f;

OVSPEC_INLINE std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

OVSPEC_INLINE std::size_t smaller(std::size_t a, std::size_t b) {
    return a < b ? a : b;
}

// Query rows of one KV head: row r is (row r / group of the sequence, query head r % group of the KV head).
struct Geometry {
    std::size_t rows;   // rows of the sequence * group
    std::size_t padded; // to full vectors
    bool narrow;
    std::size_t key_stride;   // narrow: of a query row; wide: of a converted key row
    std::size_t value_stride; // the same for output rows and value rows

    Geometry(const VerifyCall& call, std::size_t sequence_rows)
        : rows(sequence_rows * call.group), padded(round_up(rows, lanes)), narrow(rows <= narrow::max_rows),
          // one cache line more than a row: columns of a power-of-two stride share too few cache sets
          key_stride(round_up(call.keys.size, 16) + (narrow ? 0 : 16)),
          value_stride(round_up(call.values.size, 16) + (narrow ? 0 : 16)) {}

    std::size_t output_floats(const VerifyCall& call) const {
        return narrow ? rows * value_stride : padded * call.values.size;
    }
};

struct Partial {
    float* maxima;
    float* sums;
    float* out; // narrow: `[rows, value_stride]`; wide: per group of vectors `[v_size, lanes of the group]`

    Partial(const Geometry& g, const VerifyCall& call, const VerifyHead& head, std::size_t chunk) {
        maxima = head.partials + chunk * round_up(2 * g.padded + g.output_floats(call), 16);
        sums = maxima + g.padded;
        out = sums + g.padded;
    }
};

std::size_t partial_floats(const VerifyCall& call, std::size_t sequence_rows) {
    const Geometry g(call, sequence_rows);
    return round_up(2 * g.padded + g.output_floats(call), 16);
}

// Parts of a thread's scratch.
struct Scratch {
    float* queries; // narrow: `[rows, key_stride]`; wide: per group `[k_size, lanes of the group]`; scaled
    float* scores;  // narrow: `[rows, 32]`; wide: per group `[32, lanes of the group]`
    float* corrections;
    float* query_sums;      // narrow
    std::uint32_t* visible; // of every row, the slots of the block that it sees, as bits
    float* block;           // wide: a block of keys or values as f32

    static std::size_t query_floats(const Geometry& g, const VerifyCall& call) {
        return round_up(g.narrow ? g.rows * g.key_stride : g.padded * call.keys.size, 16);
    }

    Scratch(const Geometry& g, const VerifyCall& call, float* floats) {
        queries = floats;
        scores = queries + query_floats(g, call);
        corrections = scores + g.padded * block_size;
        query_sums = corrections + round_up(g.padded, 16);
        visible = (std::uint32_t*)(query_sums + round_up(g.padded, 16));
        block = query_sums + 2 * round_up(g.padded, 16);
    }
};

std::size_t worker_floats(const VerifyCall& call, std::size_t sequence_rows) {
    const Geometry g(call, sequence_rows);
    const std::size_t stride = g.key_stride > g.value_stride ? g.key_stride : g.value_stride;
    return Scratch::query_floats(g, call) + g.padded * block_size + 3 * round_up(g.padded, 16) +
           (g.narrow ? 0 : block_size * stride);
}

void prepare_queries(const VerifyCall& call, const VerifyHead& head, const Geometry& g,
                     const Scratch& scratch) {
    const VerifySequence& s = *head.sequence;
    const std::size_t size = call.keys.size, row_floats = call.keys.heads * call.group * size;
    for (std::size_t r = 0; r < g.padded; r++) {
        const bool real = r < g.rows;
        const std::size_t row = (real ? r : g.rows - 1) / call.group;
        if (g.narrow && !real)
            continue;
        const float* from =
            call.query + (s.first_row + row) * row_floats + (head.head * call.group + r % call.group) * size;
        if (g.narrow) {
            float* to = scratch.queries + r * g.key_stride;
            float total = 0.0f;
            for (std::size_t d = 0; d < g.key_stride; d++) {
                to[d] = d < size ? from[d] * call.scale : 0.0f;
                total += to[d];
            }
            scratch.query_sums[r] = total;
        } else {
            const std::size_t first = r / (2 * lanes) * (2 * lanes);
            const std::size_t width = smaller(2 * lanes, g.padded - first);
            float* to = scratch.queries + first * size + (r - first);
            for (std::size_t d = 0; d < size; d++)
                to[d * width] = real ? from[d] * call.scale : 0.0f;
        }
    }
}

// The block as f32 rows: the cache itself where it is f32, else converted into `buffer`.
struct FloatBlock {
    const float* data;
    std::size_t stride;
};

FloatBlock float_block(const CacheView& cache, const std::uint8_t* at, std::size_t tokens, float* buffer,
                       std::size_t stride) {
    if (cache.format == CacheFormat::f32)
        return {(const float*)at, cache.size};
    with_rows(cache, at, [&](const auto& rows) {
        const std::size_t full = cache.size / lanes * lanes;
        for (std::size_t t = 0; t < tokens; t++) {
            const auto row = rows.row(t);
            float* to = buffer + t * stride;
            for (std::size_t d = 0; d < full; d += lanes)
                store(to + d, value(row, d));
            if (full < cache.size)
                store(to + full, value_part(row, full, cache.size - full));
        }
    });
    return {buffer, stride};
}

struct Block {
    const std::uint8_t* keys;
    const std::uint8_t* values;
    std::int32_t first_key; // position of slot 0
    std::size_t tokens;     // slots that some row may see
};

Block block_at(const VerifyCall& call, const VerifyHead& head, std::size_t entry) {
    const VerifySequence& s = *head.sequence;
    const std::size_t logical = head.list ? (std::size_t)head.list[entry] : entry;
    const std::size_t physical = (std::size_t)s.table[logical];
    const std::size_t total = (std::size_t)s.past + s.rows;
    return {call.keys.block(physical, head.head), call.values.block(physical, head.head),
            (std::int32_t)(logical * block_size), smaller(block_size, total - logical * block_size)};
}

constexpr std::int32_t no_window = 0x7fffffff;

// The slots of a block that a row sees, as bits: the past within its window, and its ancestors' slots.
std::uint32_t visible_slots(const VerifySequence& s, std::size_t row, std::int32_t first_key,
                            std::int32_t window) {
    const std::int64_t own = (std::int64_t)s.past - first_key; // slot of row 0
    const std::int64_t lowest = (std::int64_t)s.positions[row] - window + 1 - first_key;
    std::uint64_t past = own <= 0 ? 0 : own >= 32 ? 0xffffffffu : (std::uint64_t{1} << own) - 1;
    if (lowest > 0)
        past = lowest >= 32 ? 0 : past >> lowest << lowest;
    std::uint64_t rows = 0;
    if (own < 32 && own > -64)
        rows = own >= 0 ? s.seen[row] << own : s.seen[row] >> -own;
    return (std::uint32_t)(past | rows);
}

struct Chunk {
    const VerifyCall& call;
    const VerifySequence& sequence;
    const Geometry& g;
    const Scratch& scratch;
    const Partial& partial;
    std::int32_t window;

    // Whether some row does not see some of the block's slots.
    bool masked(const Block& b) const {
        return b.first_key + (std::int32_t)block_size > sequence.past ||
               sequence.last_position - b.first_key >= window;
    }

    // Fills scratch.visible for the block; false where every row sees all of it.
    bool find_visible(const Block& b) const {
        if (!masked(b))
            return false;
        for (std::size_t r = 0; r < g.padded; r++)
            scratch.visible[r] =
                visible_slots(sequence, smaller(r, g.rows - 1) / call.group, b.first_key, window);
        return true;
    }
};

template <std::size_t V>
void score_group(const Chunk& c, const Block& b, const FloatBlock& keys, bool masked, std::size_t first,
                 Prefetch prefetch) {
    const std::size_t size = c.call.keys.size;
    float* scores = c.scratch.scores + first * block_size;
    wide::score_block<V>(keys.data, keys.stride, c.scratch.queries + first * size, size, scores, prefetch);
    if (masked)
        wide::mask_scores<V>(scores, b.tokens, c.scratch.visible + first);
    wide::softmax<V>(scores, b.tokens, c.partial.maxima + first, c.partial.sums + first,
                     (Vec*)(c.scratch.corrections + first));
}

template <std::size_t V>
void value_group(const Chunk& c, const Block& b, const FloatBlock& values, std::size_t first,
                 Prefetch prefetch) {
    const std::size_t size = c.call.values.size;
    wide::add_values<V>(values.data, values.stride, c.scratch.scores + first * block_size, b.tokens, size,
                        (const Vec*)(c.scratch.corrections + first), c.partial.out + first * size, prefetch);
}

void attend_block_wide(const Chunk& c, const Block& b, const Block& next) {
    const std::size_t pair = 2 * lanes;
    Prefetch ahead(c.call.values, b.values);
    const FloatBlock keys = float_block(c.call.keys, b.keys, b.tokens, c.scratch.block, c.g.key_stride);
    const bool masked = c.find_visible(b);
    std::size_t first = 0;
    for (; first + pair <= c.g.padded; first += pair, ahead.bytes_per_token = 0)
        score_group<2>(c, b, keys, masked, first, ahead);
    if (first < c.g.padded)
        score_group<1>(c, b, keys, masked, first, ahead);
    ahead = Prefetch(c.call.keys, next.keys);
    const FloatBlock values =
        float_block(c.call.values, b.values, b.tokens, c.scratch.block, c.g.value_stride);
    for (first = 0; first + pair <= c.g.padded; first += pair, ahead.bytes_per_token = 0)
        value_group<2>(c, b, values, first, ahead);
    if (first < c.g.padded)
        value_group<1>(c, b, values, first, ahead);
}

template <std::size_t R> void attend_block_narrow(const Chunk& c, const Block& b, const Block& next) {
    with_rows(c.call.keys, b.keys, [&](const auto& rows) {
        narrow::score_block<R>(rows, b.tokens, c.scratch.queries, c.g.key_stride, c.scratch.query_sums,
                               c.call.keys.size, c.scratch.scores, Prefetch(c.call.values, b.values));
    });
    const bool masked = c.find_visible(b);
    for (std::size_t r = 0; r < R; r++) {
        float* scores = c.scratch.scores + r * block_size;
        if (masked)
            narrow::mask_scores(scores, c.scratch.visible[r]);
        c.scratch.corrections[r] = narrow::softmax(scores, c.partial.maxima + r, c.partial.sums + r);
    }
    with_rows(c.call.values, b.values, [&](const auto& rows) {
        narrow::add_values<R>(rows, b.tokens, c.scratch.scores, c.scratch.corrections, c.call.values.size,
                              c.partial.out, c.g.value_stride, Prefetch(c.call.keys, next.keys));
    });
}

// attend_block_narrow<rows> for the row count of this call
template <std::size_t R> void attend_block_narrow_rows(const Chunk& c, const Block& b, const Block& next) {
    if (c.g.rows == R)
        return attend_block_narrow<R>(c, b, next);
    if constexpr (R > 1)
        attend_block_narrow_rows<R - 1>(c, b, next);
}

void attend_chunk(const VerifyCall& call, const VerifyHead& head, std::size_t chunk, VerifyScratch& worker) {
    const Geometry g(call, head.sequence->rows);
    const Scratch scratch(g, call, worker.floats);
    const Partial partial(g, call, head, chunk);
    if (worker.prepared != &head) {
        prepare_queries(call, head, g, scratch);
        worker.prepared = &head;
    }
    for (std::size_t r = 0; r < g.padded; r++) {
        partial.maxima[r] = no_maximum;
        partial.sums[r] = 0.0f;
    }
    __builtin_memset(partial.out, 0, g.output_floats(call) * sizeof(float));

    const Chunk c{call, *head.sequence, g, scratch, partial, call.window > 0 ? call.window : no_window};
    const std::size_t begin = head.begin + chunk * head.chunk_blocks;
    const std::size_t end = smaller(head.end, begin + head.chunk_blocks);
    Block block = block_at(call, head, begin);
    for (std::size_t entry = begin; entry < end; entry++) {
        const Block next = entry + 1 < head.end ? block_at(call, head, entry + 1) : block;
        if (g.narrow)
            attend_block_narrow_rows<narrow::max_rows>(c, block, next);
        else
            attend_block_wide(c, block, next);
        block = next;
    }
}

// maxima of every chunk become the factors by which its output counts; rows are handled a vector at a time
void weigh_chunks(const VerifyCall& call, const VerifyHead& head, const Geometry& g) {
    for (std::size_t r = 0; r < g.padded; r += lanes) {
        Vec sink = splat(minus_infinity);
        for (std::size_t i = 0; call.sinks && i < lanes; i++)
            sink[i] = call.sinks[head.head * call.group + (r + i) % call.group];
        Vec best = max(sink, splat(no_maximum));
        for (std::size_t c = 0; c < head.chunks; c++)
            best = max(load(Partial(g, call, head, c).maxima + r), best);
        Vec total = exp_nonpositive(sink - best);
        for (std::size_t c = 0; c < head.chunks; c++) {
            const Partial part(g, call, head, c);
            const Vec weight = exp_nonpositive(load(part.maxima + r) - best);
            total += weight * load(part.sums + r);
            store(part.maxima + r, weight);
        }
        for (std::size_t c = 0; c < head.chunks; c++) {
            float* weight = Partial(g, call, head, c).maxima + r;
            store(weight, load(weight) / total);
        }
    }
}

void merge_chunks(const VerifyCall& call, const VerifyHead& head) {
    const Geometry g(call, head.sequence->rows);
    const std::size_t size = call.values.size, row_floats = call.values.heads * call.group * size;
    float* to = call.output + head.sequence->first_row * row_floats + head.head * call.group * size;
    weigh_chunks(call, head, g);
    const Partial sum(g, call, head, 0);
    for (std::size_t c = 0; c < head.chunks; c++) {
        const Partial part(g, call, head, c);
        if (g.narrow) {
            for (std::size_t r = 0; r < g.rows; r++)
                for (std::size_t d = 0; d < g.value_stride; d += lanes) {
                    float* at = sum.out + r * g.value_stride + d;
                    const Vec x = load(part.out + r * g.value_stride + d) * part.maxima[r];
                    store(at, c == 0 ? x : load(at) + x);
                }
            continue;
        }
        for (std::size_t first = 0; first < g.padded; first += 2 * lanes) {
            const std::size_t width = smaller(2 * lanes, g.padded - first);
            for (std::size_t v = 0; v < width; v += lanes) {
                const Vec weight = load(part.maxima + first + v);
                for (std::size_t d = 0; d < size; d++) {
                    const std::size_t at = first * size + d * width + v;
                    const Vec x = load(part.out + at) * weight;
                    store(sum.out + at, c == 0 ? x : load(sum.out + at) + x);
                }
            }
        }
    }
    for (std::size_t r = 0; r < g.rows; r++) {
        float* row = to + r / call.group * row_floats + r % call.group * size;
        if (g.narrow) {
            __builtin_memcpy(row, sum.out + r * g.value_stride, size * sizeof(float));
            continue;
        }
        const std::size_t first = r / (2 * lanes) * (2 * lanes);
        const std::size_t width = smaller(2 * lanes, g.padded - first);
        for (std::size_t d = 0; d < size; d++)
            row[d] = sum.out[first * size + d * width + (r - first)];
    }
}

} // namespace

const VerifyKernels verify_kernels = {worker_floats, partial_floats, attend_chunk, merge_chunks};

} // namespace OVSPEC_ISA
} // namespace ovspec
