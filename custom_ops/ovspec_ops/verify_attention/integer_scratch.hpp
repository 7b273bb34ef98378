// What the steps of the integer path share: a thread's scratch memory and the two blocks it is at.
#pragma once

#include "verify_attention/integer.hpp"
#include "verify_attention/unit.hpp"
#ifdef OVSPEC_AMX
#include "verify_attention/amx.hpp"
#endif

namespace ovspec::OVSPEC_ISA::integer_path {

using namespace integer;

constexpr std::size_t pair_blocks = 2;
constexpr std::size_t pair_slots = pair_blocks * block_size;
constexpr std::size_t most_slots = most_blocks * block_size; // of a pair in a tree

// A zero point z is split into this and z - centre: rounded numbers are multiplied by the first, exact ones
// by the second. A rounding error then counts (byte - centre) times, 128 at most, however large z is. (Where
// all values are nearly the same, their scale is tiny and their zero point huge.)
constexpr float centre = 128.0f;

// Of few rows: four high bytes and four low ones of four channels of a query.
constexpr std::size_t query_bytes = 8;

// A thread's scratch, for every head of an item.
struct HeadScratch {
    float* queries;     // by channel: per group `[k_size, lanes]`, scaled; half: the rows twice
    IVec* parts;        // by token: per group `[k_size / 4, 2]`, 16-bit queries
    float* units;       // by token: per row, what one unit of its 16-bit query is worth
    float* sums;        // by token: per row, the sum of its 16-bit query
    std::uint8_t* rows; // few rows: their 16-bit queries, `[k_size / 4, rows, query_bytes]`
    std::size_t floats;

    static std::size_t group_floats(std::size_t size) { return size * lanes; }
    static std::size_t group_parts(std::size_t size) { return size / 4 * 2; }

    HeadScratch(const Geometry& g, const VerifyCall& call, float* at) {
        Parts all{at};
        const bool by_channel = call.keys.format == CacheFormat::u8_channel;
        const std::size_t groups = g.padded / lanes, size = call.keys.size;
        queries = all.take(by_channel ? groups * group_floats(size) : 0);
        parts = (IVec*)all.take(by_channel || g.few ? 0 : groups * group_parts(size) * lanes);
        units = all.take(g.padded);
        sums = all.take(g.padded);
        rows = (std::uint8_t*)all.take(g.few ? size / 4 * g.rows * query_bytes / sizeof(float) : 0);
        floats = all.floats;
    }
};

// A thread's scratch, for all heads.
struct Scratch {
    float* queries;       // by token: of one group, `[k_size, lanes]`, while they are prepared
    IVec* query_parts;    // by channel: of one group and block, `[k_size / 4, 2]`
    float* scores;        // `[128, rows of the group]`; few rows: `[rows, 128]`
    float* ordered;       // of a tree, by position: `[64, rows of the group]`; few rows: `[rows, 64]`
    IVec* weight_parts;   // `[32, 2]`
    std::uint8_t* values; // `[32, value_stride, 4]`: four tokens of a channel, as dot() takes them
    IVec* keys;           // few rows: of a block, `[k_size / 4, 32]`, four channels of a token to a lane
    IVec* sums;           // amx: of a block's scores or of 16 channels, `[64]`
    IVec* weight_rows;    // amx: 16 of weight_parts by row, `[2, 2, 16]`
    float *key_scales, *key_zeros, *value_scales, *value_zeros; // `[128]`
    std::uint32_t* visible;                                     // per block and row, the slots that it sees
    std::size_t value_stride;
    std::size_t floats;

    Scratch(const Geometry& g, const VerifyCall& call, float* at) {
        Parts parts{at};
        const bool by_channel = call.keys.format == CacheFormat::u8_channel;
        const std::size_t size = call.keys.size;
        value_stride = round_up(call.values.size, 4 * lanes);
        queries = parts.take(by_channel || g.few ? 0 : HeadScratch::group_floats(size));
        query_parts = (IVec*)parts.take(by_channel ? HeadScratch::group_parts(size) * lanes : 0);
        scores = parts.take(most_slots * larger(lanes, most_few_rows));
        ordered = parts.take(pair_slots * larger(lanes, most_few_rows));
        weight_parts = (IVec*)parts.take(most_slots / 4 * 2 * lanes);
        values = (std::uint8_t*)parts.take(most_slots / 4 * value_stride);
        keys = (IVec*)parts.take(g.few ? round_up(size, sizeof(IVec)) / 4 * block_size : 0);
        sums = (IVec*)parts.take(integer_rows_first ? pair_slots * lanes : 0);
        weight_rows = (IVec*)parts.take(integer_rows_first ? 64 * lanes : 0);
        key_scales = parts.take(most_slots);
        key_zeros = parts.take(most_slots);
        value_scales = parts.take(most_slots);
        value_zeros = parts.take(most_slots);
        visible = (std::uint32_t*)parts.take(pair_blocks * g.padded);
        floats = parts.floats;
    }
};

OVSPEC_INLINE Vec magnitude(Vec x) {
    return max(x, -x);
}

// One or two entries of the list, and what is read of their blocks for all rows.
struct Pair {
    Unit unit;
    Fetch fetch; // of the pair that comes next
    bool masked[pair_blocks] = {};
    float largest_scale[most_blocks] = {}; // of each block's values
};

struct Chunk {
    const VerifyCall& call;
    const Geometry& g;
    const HeadScratch& own;
    const Scratch& scratch;
    const Partial& partial;
    const VerifySequence& sequence;
    bool guarded;
};

} // namespace ovspec::OVSPEC_ISA::integer_path
