// Tiles of number_path.hpp: rows times the neurons of some vectors of a panel, their sums in registers.
#pragma once

#include "linear/number_rows.hpp"

namespace ovspec::OVSPEC_ISA::number_path {

constexpr std::size_t panel_vectors = panel_width / lanes;

// What one tile of a chunk reads, and the totals that it adds to.
struct Tile {
    const std::uint8_t* weights; // as stored, or widened to f32
    std::size_t stride;          // bytes from a unit of weights to the next one
    const std::uint8_t* rows;    // of a block, at the chunk's first input
    std::size_t steps;           // inputs, or pairs of them
    const float* scales;         // of integer weights, else null; then zero points + integer_base
    float* totals;               // `[rows, 32]`
    bool first;                  // chunk of an output
    bool asks;                   // whether this is the first time that the weights are read
};

template <std::size_t R, std::size_t V> OVSPEC_INLINE void join(const Tile& tile, const Vec (&sums)[R][V]) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < V; v++) {
        const Vec scale = tile.scales ? load(tile.scales + v * lanes) : splat(1.0f);
#pragma GCC unroll 12
        for (std::size_t r = 0; r < R; r++) {
            float* total = tile.totals + r * panel_width + v * lanes;
            const Vec before = tile.first ? Vec{} : load(total);
            store(total, fused(sums[r][v], scale, before));
        }
    }
}

// Asks for the weights that come `panels::ahead` bytes later; those that are read `once` as `panels::Asked`
// does.
template <std::size_t bytes, bool once = false> OVSPEC_INLINE void ask(const std::uint8_t* weights) {
#pragma GCC unroll 2
    for (std::size_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(weights + panels::ahead + at, 0, once ? 0 : 2);
}

// Byte `index` of every lane.
template <std::size_t index> OVSPEC_INLINE UVec byte_of(UVec four) {
#if OVSPEC_LANES == 8 && defined(__AVX2__)
    // One instruction in place of a shift and a mask, which would compete with multiply-adds: of 4 to 6 rows
    // that is a quarter of the time.
    if constexpr (index % 3 != 0) {
        constexpr int zeros = (int)0x80808000u, at = (int)index;
        const __m128i places = _mm_setr_epi32(zeros + at, zeros + at + 4, zeros + at + 8, zeros + at + 12);
        return (UVec)_mm256_shuffle_epi8((__m256i)four, _mm256_broadcastsi128_si256(places));
    }
#endif
    const UVec shifted = four >> (8 * index);
    return index == 3 ? shifted : shifted & 255u;
}

// Rows of f32 times weights of a format. A unit of a panel's weights holds `steps` inputs.
template <WeightFormat form> struct Numbers {
    static constexpr WeightFormat format = form;
    static constexpr bool widens = form != WeightFormat::f32;
    static constexpr bool integers = format == WeightFormat::u8 || format == WeightFormat::u4;
    static constexpr std::size_t steps = format == WeightFormat::u4     ? 8
                                         : format == WeightFormat::u8   ? 4
                                         : format == WeightFormat::bf16 ? 2
                                                                        : 1;
    // Formats with several inputs a unit need some of the 16 registers to take them out.
    static constexpr std::size_t most_sums = steps > 1 ? 8 : 12;
    static constexpr std::size_t vector_bytes = lanes * (format == WeightFormat::f16 ? 2 : 4);

    // Weights of vector v for input `step` of the unit at `unit`, less their zero points, to which
    // integer_base is added already.
    template <std::size_t step>
    static OVSPEC_INLINE_MEMBER Vec weights(const std::uint8_t* unit, std::size_t v,
                                            const float* zero_points) {
        const std::uint8_t* from = unit + v * vector_bytes;
        if constexpr (format == WeightFormat::f32)
            return load_as<Vec>(from);
        if constexpr (format == WeightFormat::f16)
            return from_f16(load_as<HalfVec>(from));
        const UVec stored = load_as<UVec>(from);
        if constexpr (format == WeightFormat::bf16)
            return (Vec)(step == 0 ? stored << 16 : stored & (UVec{} + 0xffff0000u));
        const Vec zero_point = load(zero_points + v * lanes);
        if constexpr (format == WeightFormat::u8)
            return less_zero_point(byte_of<step>(stored), zero_point);
        else // the second four inputs lie in the upper halves of the bytes
            return less_zero_point(stored >> (8 * (step % 4) + 4 * (step / 4)) & 15u, zero_point);
    }
    static OVSPEC_INLINE_MEMBER Vec value(const std::uint8_t* row) { return splat(*(const float*)row); }
    static OVSPEC_INLINE_MEMBER Vec add(Vec sum, Vec weights, Vec value) {
        return fused(weights, value, sum);
    }
};

// Whether this instruction set may have VDPBF16PS, whether the processor has it, and the instruction.
#if OVSPEC_LANES == 16 && defined(__AVX512F__)
constexpr bool may_multiply_pairs = true;
OVSPEC_INLINE bool multiplies_pairs() {
    return __builtin_cpu_supports("avx512bf16");
}
OVSPEC_INLINE Vec add_pair_in_hardware(Vec to, UVec weights, UVec values) {
    // No intrinsic: it needs a flag of the compiler for an instruction that the processor may lack.
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(to) : "v"(weights), "v"(values));
    return to;
}
#else
constexpr bool may_multiply_pairs = false;
OVSPEC_INLINE bool multiplies_pairs() {
    return false;
}
Vec add_pair_in_hardware(Vec to, UVec weights, UVec values);
#endif

// Rows of bf16 times weights of bf16. A step is two inputs, of which the second is added first; each sum is
// rounded to the nearest.
template <bool hardware> struct Pairs {
    static constexpr bool integers = false, widens = false;
    static constexpr std::size_t steps = 1, most_sums = 12, vector_bytes = sizeof(UVec);

    template <std::size_t>
    static OVSPEC_INLINE_MEMBER UVec weights(const std::uint8_t* unit, std::size_t v, const float*) {
        return load_as<UVec>(unit + v * vector_bytes);
    }
    static OVSPEC_INLINE_MEMBER UVec value(const std::uint8_t* row) {
        return UVec{} + *(const std::uint32_t*)row;
    }
    static OVSPEC_INLINE_MEMBER Vec add(Vec sum, UVec weights, UVec value) {
        if constexpr (hardware)
            return add_pair_in_hardware(sum, weights, value);
        const UVec upper = UVec{} + 0xffff0000u;
        const Vec second = fused((Vec)(weights & upper), (Vec)(value & upper), sum);
        return fused((Vec)(weights << 16), (Vec)(value << 16), second);
    }
};

// use(Count<step>) of every step of a unit.
template <std::size_t steps, std::size_t step = 0, class Use> OVSPEC_INLINE void for_steps(const Use& use) {
    if constexpr (step < steps) {
        use(Count<step>());
        for_steps<steps, step + 1>(use);
    }
}

// Adds a step: R rows times V vectors of weights. All of both would not fit in the registers: of rows and
// vectors, those that are fewer are loaded first, then the others one at a time.
template <class Of, std::size_t R, std::size_t V, class Weights>
OVSPEC_INLINE void add_step(Vec (&sums)[R][V], const Weights& weights, const std::uint8_t* rows) {
    if constexpr (R < V) {
        decltype(Of::value(rows)) values[R];
#pragma GCC unroll 12
        for (std::size_t r = 0; r < R; r++)
            values[r] = Of::value(rows + r * sizeof(float));
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++) {
            const auto read = weights(v);
#pragma GCC unroll 12
            for (std::size_t r = 0; r < R; r++)
                sums[r][v] = Of::add(sums[r][v], read, values[r]);
        }
    } else {
        decltype(weights(0)) read[V];
#pragma GCC unroll 8
        for (std::size_t v = 0; v < V; v++)
            read[v] = weights(v);
#pragma GCC unroll 12
        for (std::size_t r = 0; r < R; r++) {
            const auto value = Of::value(rows + r * sizeof(float));
#pragma GCC unroll 8
            for (std::size_t v = 0; v < V; v++)
                sums[r][v] = Of::add(sums[r][v], read[v], value);
        }
    }
}

// R rows times V vectors of neurons.
template <class Of, std::size_t R, std::size_t V> __attribute__((noinline)) void add_tile(const Tile& tile) {
    Vec sums[R][V] = {};
    const std::uint8_t *weights = tile.weights, *rows = tile.rows;
    const float* zero_points = Of::integers ? tile.scales + panel_width : nullptr;
    const bool asks = tile.asks;
    for (std::size_t k = 0; k < tile.steps; k += Of::steps, weights += tile.stride) {
        if (asks)
            ask<panel_vectors * Of::vector_bytes>(weights);
        for_steps<Of::steps>([&](auto step) __attribute__((always_inline)) {
            add_step<Of, R, V>(
                sums,
                [&](std::size_t v) __attribute__((always_inline)) {
                    return Of::template weights<step>(weights, v, zero_points);
                },
                rows);
            rows += R * sizeof(float);
        });
    }
    join<R, V>(tile, sums);
}

// One row times P panels of numbers, `panel_bytes` apart. The sums of one panel alone would wait for each
// other.
template <class Of, std::size_t P>
__attribute__((noinline)) void add_panels(const Tile& tile, std::size_t panel_bytes) {
    Vec sums[P][panel_vectors] = {};
    const std::uint8_t *weights = tile.weights, *row = tile.rows;
    for (std::size_t k = 0; k < tile.steps; k += Of::steps, weights += tile.stride)
        for_steps<Of::steps>([&](auto step) __attribute__((always_inline)) {
            const auto value = Of::value(row);
#pragma GCC unroll 4
            for (std::size_t p = 0; p < P; p++) {
                const std::uint8_t* of_panel = weights + p * panel_bytes;
                if constexpr (step == 0)
                    ask<panel_vectors * Of::vector_bytes, true>(of_panel);
#pragma GCC unroll 8
                for (std::size_t v = 0; v < panel_vectors; v++)
                    sums[p][v] = Of::add(sums[p][v], Of::template weights<step>(of_panel, v, nullptr), value);
            }
            row += sizeof(float);
        });
    join<P, panel_vectors>(tile, sums);
}

// Weights of two vectors of neurons as f32 `[inputs, 2 * lanes]`, less their zero points.
template <WeightFormat format>
__attribute__((noinline)) void widen(const std::uint8_t* weights, const float* zero_points,
                                     std::size_t inputs, float* to) {
    typedef Numbers<format> Of;
    constexpr std::size_t unit = panel_vectors * Of::vector_bytes;
    for (std::size_t k = 0; k < inputs; k += Of::steps, weights += unit) {
        ask<unit>(weights);
        for_steps<Of::steps>([&](auto step) __attribute__((always_inline)) {
#pragma GCC unroll 2
            for (std::size_t v = 0; v < 2; v++, to += lanes)
                store(to, Of::template weights<step>(weights, v, zero_points));
        });
    }
}

} // namespace ovspec::OVSPEC_ISA::number_path
