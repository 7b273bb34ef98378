// The blocks that share one step of the softmax, and what a row sees of them. Part of the kernels: see
// common/simd.hpp.
#pragma once

#include "verify_attention/geometry.hpp"

namespace ovspec {
namespace OVSPEC_ISA {

// In a tree, a row's slot lies up to 63 behind its position: a position of a block has its slot in that block
// or in one of the next two.
constexpr std::size_t blocks_behind = 2;
constexpr std::size_t most_blocks = 2 + blocks_behind;

// Entries of a head's list that share one step of the softmax. Steps begin at fixed entries. A row's step
// sums over the row's positions in their order, so a tree's rows, whose slots have gaps and may lie in blocks
// behind, are put in the order of positions first.
struct Unit {
    Block blocks[most_blocks];
    std::size_t entries; // the first blocks: those of the step's positions
    std::size_t count;   // all blocks that may hold their slots
    bool gaps;           // whether slots are not positions

    std::size_t slots() const { return count * block_size; }
    std::size_t positions() const { return entries * block_size; }

    Unit(const VerifyCall& call, const Visit& visit, std::size_t entry, std::size_t unit_blocks)
        : entries(smaller(unit_blocks, visit.end - entry)), count(entries) {
        for (std::size_t e = 0; e < entries; e++)
            blocks[e] = visit.block(call, entry + e);
        const VerifySequence& s = *visit.head.sequence;
        const std::size_t last = (std::size_t)blocks[entries - 1].first_key / block_size;
        gaps = s.tree && (last + 1) * block_size > (std::size_t)s.past;
        const std::size_t total = ((std::size_t)s.past + s.rows + block_size - 1) / block_size;
        for (std::size_t b = last + 1; gaps && b < total && count < entries + blocks_behind; b++)
            blocks[count++] = block_of(call, visit.head, b);
    }

    // Where token or slot `place` lies among the first `among` blocks; slots() where it is in none.
    std::size_t index(std::int32_t place, std::size_t among) const {
        for (std::size_t b = 0; b < among; b++)
            if (place >= blocks[b].first_key && place < blocks[b].first_key + (std::int32_t)block_size)
                return b * block_size + (std::size_t)(place - blocks[b].first_key);
        return slots();
    }
};

// Calls use(slot, position), both counted within the unit, for all that a row sees, positions ascending.
template <class Use>
OVSPEC_INLINE void each_visible(const VerifySequence& s, std::size_t row, std::int32_t window,
                                const Unit& unit, Use&& use) {
    for (std::size_t i = 0; i < unit.positions(); i++) {
        const std::int32_t token = unit.blocks[i / block_size].first_key + (std::int32_t)(i % block_size);
        if (token < s.past && (std::int64_t)token > (std::int64_t)s.positions[row] - window)
            use(i, i);
    }
    for (std::size_t j = 0; j <= row; j++) {
        if (!(s.seen[row] >> j & 1))
            continue;
        const std::size_t position = unit.index(s.positions[j], unit.entries);
        const std::size_t slot = unit.index(s.past + (std::int32_t)j, unit.count);
        if (position < unit.slots() && slot < unit.slots())
            use(slot, position);
    }
}

// Scores `[slots, stride]` of `width` rows from row `first` on -> `[positions, stride]`, -infinity where a
// row sees nothing.
static void order_scores(const VerifySequence& s, const Geometry& g, std::size_t group, std::int32_t window,
                         const Unit& unit, std::size_t first, std::size_t width, const float* scores,
                         std::size_t stride, float* ordered) {
    for (std::size_t i = 0; i < unit.positions() * stride; i++)
        ordered[i] = minus_infinity;
    for (std::size_t i = 0; i < width; i++)
        each_visible(s, smaller(first + i, g.rows - 1) / group, window, unit,
                     [&](std::size_t slot, std::size_t position) {
                         ordered[position * stride + i] = scores[slot * stride + i];
                     });
}

// The way back for weights: 0 in slots that a row does not see.
static void spread_weights(const VerifySequence& s, const Geometry& g, std::size_t group, std::int32_t window,
                           const Unit& unit, std::size_t first, std::size_t width, const float* ordered,
                           std::size_t stride, float* weights) {
    for (std::size_t i = 0; i < unit.slots() * stride; i++)
        weights[i] = 0.0f;
    for (std::size_t i = 0; i < width; i++)
        each_visible(s, smaller(first + i, g.rows - 1) / group, window, unit,
                     [&](std::size_t slot, std::size_t position) {
                         weights[slot * stride + i] = ordered[position * stride + i];
                     });
}

// The slots of a block that a row sees, as bits: the past within its window, and its ancestors' slots.
OVSPEC_INLINE std::uint32_t visible_slots(const VerifySequence& s, std::size_t row, std::int32_t first_key,
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

// Fills `visible` with the slots that each row sees; false, without filling it, where every row sees all of
// them.
OVSPEC_INLINE bool find_visible(const VerifySequence& s, const Geometry& g, std::size_t group,
                                std::int32_t window, const Block& b, std::uint32_t* visible) {
    const bool masked =
        b.first_key + (std::int32_t)block_size > s.past || s.last_position - b.first_key >= window;
    for (std::size_t r = 0; masked && r < g.padded; r++)
        visible[r] = visible_slots(s, smaller(r, g.rows - 1) / group, b.first_key, window);
    return masked;
}

} // namespace OVSPEC_ISA
} // namespace ovspec
