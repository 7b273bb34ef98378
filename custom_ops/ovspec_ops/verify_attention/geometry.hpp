// How the query rows of one KV head lie in scratch memory and in partial results. Part of the kernels: see
// common/simd.hpp.
#pragma once

#include "common/simd.hpp"
#include "verify_attention/kernel.hpp"

namespace ovspec::OVSPEC_ISA {

// Below every score, above -infinity: a row that has seen no key yet gives weights of 0, not NaN.
constexpr float no_maximum = -1e30f;

OVSPEC_INLINE std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

OVSPEC_INLINE std::size_t smaller(std::size_t a, std::size_t b) {
    return a < b ? a : b;
}

OVSPEC_INLINE std::size_t larger(std::size_t a, std::size_t b) {
    return a > b ? a : b;
}

enum class Path {
    floats,  // products of floats
    integer, // products of bytes
};

#ifdef OVSPEC_AMX
constexpr bool integer_rows_first = true; // as the tiles have it
#else
constexpr bool integer_rows_first = false;
#endif

// Up to so many rows of the float path have channels in the lanes, not rows.
constexpr std::size_t few_float_rows = lanes / 2;

// Of the integer path.
constexpr std::size_t most_few_rows = 12;

// Whether tokens and channels are in the lanes, not rows (integer_few.hpp, float_path.hpp). With products of
// bytes that is faster where rows would leave a sixth of the lanes empty. A tile costs the same for 3 to 16
// rows, and more than vectors for one or two. Keys by channel have no such code.
OVSPEC_INLINE bool are_few(Path path, std::size_t rows) {
    if (path == Path::floats)
        return rows <= few_float_rows;
    if (integer_rows_first)
        return rows <= 2;
    return rows <= most_few_rows && 6 * rows <= 5 * round_up(rows, lanes / 2);
}

// A score of the float path is added up as so many sums of channels (float_scores.hpp).
constexpr std::size_t channel_sums = lanes == 4 ? 4 : 8;

// Few rows of the float path: the next power of two, so that there are fewer instances of the loops.
OVSPEC_INLINE std::size_t power_of_two(std::size_t rows) {
    std::size_t power = 1;
    while (power < rows)
        power *= 2;
    return power;
}

// By the caches alone: a row takes the same arithmetic whatever the number of rows.
OVSPEC_INLINE Path path_of(const VerifyCall& call) {
#ifdef OVSPEC_DOT
    if (call.values.format == CacheFormat::u8_token &&
        (call.keys.format == CacheFormat::u8_token || call.keys.format == CacheFormat::u8_channel))
        return Path::integer;
#else
    (void)call;
#endif
    return Path::floats;
}

// Query rows of one KV head: row r is (row r / group of the sequence, query head r % group of the KV head).
// Lanes are rows. They come in groups of `unit` rows and a last one of what is left, in half or whole
// vectors.
struct Geometry {
    std::size_t rows;   // rows of the sequence * group
    std::size_t padded; // to full vectors
    Path path;
    bool few;                 // lanes are not rows
    bool row_major;           // whether outputs are rows of channels, not channels of rows
    std::size_t unit;         // rows of a group
    std::size_t grouped;      // rows of all groups
    std::size_t key_stride;   // of a converted key row
    std::size_t value_stride; // of a converted value row; row_major: of an output row

    Geometry(const VerifyCall& call, std::size_t sequence_rows)
        : rows(sequence_rows * call.group), padded(round_up(rows, lanes)), path(path_of(call)),
          few((path == Path::floats || call.keys.format == CacheFormat::u8_token) && are_few(path, rows)),
          row_major(few || (path == Path::integer && integer_rows_first)),
          unit(path == Path::integer ? lanes : 2 * lanes),
          grouped(few                     ? (path == Path::integer ? rows : power_of_two(rows))
                  : path == Path::integer ? round_up(rows, lanes / 2)
                                          : padded),
          // one cache line more than a row: columns of a power-of-two stride share too few cache sets
          key_stride(round_up(call.keys.size, 16) + (path == Path::floats ? 16 : 0)),
          value_stride(round_up(call.values.size, 16) + (path == Path::floats ? 16 : 0)) {}

    // Rows of the group that begins with row `first`.
    std::size_t width(std::size_t first) const { return smaller(unit, grouped - first); }

    std::size_t output_floats(const VerifyCall& call) const {
        return row_major ? grouped * value_stride : grouped * call.values.size;
    }
};

struct Partial {
    float* maxima;
    float* sums;
    float* out; // row_major: `[rows, value_stride]`; else per group `[v_size, rows of the group]`

    Partial(const Geometry& g, const VerifyCall& call, const VerifyHead& head, std::size_t chunk) {
        maxima = head.partials + chunk * floats(g, call);
        sums = maxima + g.padded;
        out = sums + g.padded;
    }

    static std::size_t floats(const Geometry& g, const VerifyCall& call) {
        return round_up(2 * g.padded + g.output_floats(call), 16);
    }
};

// The query entry (r, d), scaled; r is a row of the KV head.
struct Queries {
    const float* first;
    std::size_t row_floats, group, size;

    Queries(const VerifyCall& call, const VerifyHead& head)
        : row_floats(call.keys.heads * call.group * call.keys.size), group(call.group), size(call.keys.size) {
        first = call.query + head.sequence->first_row * row_floats + head.head * call.group * size;
    }

    const float* row(std::size_t r) const { return first + r / group * row_floats + r % group * size; }
};

struct Block {
    const std::uint8_t* keys;
    const std::uint8_t* values;
    std::int32_t first_key; // token in slot 0
    std::size_t tokens;     // slots that some row may see
};

OVSPEC_INLINE Block block_of(const VerifyCall& call, const VerifyHead& head, std::size_t logical) {
    const VerifySequence& s = *head.sequence;
    const std::size_t physical = (std::size_t)s.table[logical];
    const std::size_t total = (std::size_t)s.past + s.rows;
    return {call.keys.block(physical, head.head), call.values.block(physical, head.head),
            (std::int32_t)(logical * block_size), smaller(block_size, total - logical * block_size)};
}

OVSPEC_INLINE Block block_at(const VerifyCall& call, const VerifyHead& head, std::size_t entry) {
    return block_of(call, head, head.list ? (std::size_t)head.list[entry] : entry);
}

// So many entries of a head's list are worked on before the same ones of the next head, whose part of a block
// lies behind: more would leave the order of memory, fewer would load the head's queries and output more
// often.
constexpr std::size_t visit_blocks = 2;

// The entries begin .. end of one head's list, and what is worked on after them.
struct Visit {
    const VerifyHead& head;
    std::size_t begin, end;
    const VerifyHead& next_head;
    std::size_t next_begin;
    bool guarded; // a token with a weight of 0 adds nothing, also where it is not finite

    // The block of entry `entry`, which may be past the end; then some block that comes soon.
    Block block(const VerifyCall& call, std::size_t entry) const {
        if (entry < end)
            return block_at(call, head, entry);
        return block_at(call, next_head, smaller(next_begin + entry - end, next_head.end - 1));
    }
};

// Consecutive parts of a thread's scratch memory; without memory, only their size.
struct Parts {
    float* at;
    std::size_t floats = 0;

    float* take(std::size_t count) {
        float* part = at ? at + floats : nullptr;
        floats += round_up(count, 16);
        return part;
    }
};

} // namespace ovspec::OVSPEC_ISA
