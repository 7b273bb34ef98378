// The blocks that share one step of the softmax, and what a row sees of them. Part of the kernels: see
// common/simd.hpp.
#pragma once

#include "verify_attention/geometry.hpp"

namespace ovspec::OVSPEC_ISA {

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
OVSPEC_INLINE void each_visible(const VerifySequence& s, std::size_t row, const Unit& unit, Use&& use) {
    for (std::size_t i = 0; i < unit.positions(); i++) {
        const std::int32_t token = unit.blocks[i / block_size].first_key + (std::int32_t)(i % block_size);
        if (token < s.past && token >= s.first_keys[row])
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
static void order_scores(const VerifySequence& s, const Geometry& g, std::size_t group, const Unit& unit,
                         std::size_t first, std::size_t width, const float* scores, std::size_t stride,
                         float* ordered) {
    for (std::size_t i = 0; i < unit.positions() * stride; i++)
        ordered[i] = minus_infinity;
    for (std::size_t i = 0; i < width; i++)
        each_visible(s, smaller(first + i, g.rows - 1) / group, unit,
                     [&](std::size_t slot, std::size_t position) {
                         ordered[position * stride + i] = scores[slot * stride + i];
                     });
}

// The way back for weights: 0 in slots that a row does not see.
static void spread_weights(const VerifySequence& s, const Geometry& g, std::size_t group, const Unit& unit,
                           std::size_t first, std::size_t width, const float* ordered, std::size_t stride,
                           float* weights) {
    for (std::size_t i = 0; i < unit.slots() * stride; i++)
        weights[i] = 0.0f;
    for (std::size_t i = 0; i < width; i++)
        each_visible(s, smaller(first + i, g.rows - 1) / group, unit,
                     [&](std::size_t slot, std::size_t position) {
                         weights[slot * stride + i] = ordered[position * stride + i];
                     });
}

// Scale and zero point of tokens that have a weight of 0 become 0.
OVSPEC_INLINE void guard(Vec weights, Vec& scale, Vec& zero) {
    const IVec counts = weights != 0.0f;
    scale = (Vec)((IVec)scale & counts);
    zero = (Vec)((IVec)zero & counts);
}

// Of a row in a tree, whose slots are not its positions: the sum of its weights, by position and `stride`
// apart, times scales times what zero points have above `centre`, added up as four sums of every fourth
// position.
static float bias_of(const VerifySequence& s, std::size_t row, const Unit& unit, const float* weights,
                     std::size_t stride, float factor, const float* scales, const float* zeros,
                     float centre) {
    float sums[4] = {};
    each_visible(s, row, unit, [&](std::size_t slot, std::size_t position) {
        if (weights[position * stride] == 0.0f)
            return;
        const float weight = weights[position * stride] * (factor * scales[slot]);
        sums[position % 4] = fused(weight, zeros[slot] - centre, sums[position % 4]);
    });
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// The slots of a block that a row sees, as bits: the past from its first key on, and rows' own slots.
OVSPEC_INLINE std::uint32_t visible_slots(const VerifySequence& s, std::size_t row, std::int32_t first_key) {
    const std::int64_t own = (std::int64_t)s.past - first_key; // slot of row 0
    const std::int64_t lowest = (std::int64_t)s.first_keys[row] - first_key;
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
OVSPEC_INLINE bool find_visible(const VerifySequence& s, const Geometry& g, std::size_t group, const Block& b,
                                std::uint32_t* visible) {
    const bool masked = b.first_key + (std::int32_t)block_size > s.past || b.first_key < s.last_first_key;
    for (std::size_t r = 0; masked && r < g.padded; r++)
        visible[r] = visible_slots(s, smaller(r, g.rows - 1) / group, b.first_key);
    return masked;
}

// Scores of a block's slots that a row does not see become -infinity.
OVSPEC_INLINE void mask_slots(float* scores, std::uint32_t visible) {
    for (std::size_t t = 0; t < block_size; t += lanes) {
        const UVec bits = (UVec)((std::int32_t)visible + IVec{}) >> ((UVec)lane_numbers() + (std::uint32_t)t);
        store(scores + t, (bits & 1u) != 0u ? load(scores + t) : splat(minus_infinity));
    }
}

// Scales and zero points of a block's rows; 0 for slots that hold nothing.
static void read_parameters(const CacheView& cache, const std::uint8_t* block, std::size_t tokens,
                            float* scales, float* zeros) {
    std::size_t first = 0;
#if defined(__AVX2__)
    const auto two = [&](std::size_t t) __attribute__((always_inline)) {
        return _mm_loadh_pi(_mm_castpd_ps(_mm_load_sd((const double*)(block + t * cache.row_bytes))),
                            (const __m64*)(block + (t + 1) * cache.row_bytes));
    };
    for (; first + 8 <= tokens; first += 8) {
        const __m256 low = _mm256_set_m128(two(first + 4), two(first));
        const __m256 high = _mm256_set_m128(two(first + 6), two(first + 2));
        _mm256_storeu_ps(scales + first, _mm256_shuffle_ps(low, high, 0x88));
        _mm256_storeu_ps(zeros + first, _mm256_shuffle_ps(low, high, 0xdd));
    }
#endif
    for (std::size_t t = first; t < tokens; t++) {
        scales[t] = load_as<float>(block + t * cache.row_bytes);
        zeros[t] = load_as<float>(block + t * cache.row_bytes + 4);
    }
    for (std::size_t t = tokens; t < block_size; t++)
        scales[t] = zeros[t] = 0.0f;
}

} // namespace ovspec::OVSPEC_ISA
