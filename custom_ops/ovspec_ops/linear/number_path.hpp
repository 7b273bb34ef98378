// Rows of numbers times panels: f32 rows with weights of any format, or rows of bf16 with weights of bf16.
//
// The order of a sum is the same for any number of rows and threads. The products of a chunk of 256 inputs
// are added in the order of the inputs, from zero; a chunk's sum then joins the total of the output. With
// pairs of bf16 the second of two products is added before the first, as the instruction VDPBF16PS does,
// which also takes denormal numbers for zero.
#pragma once

#include "linear/number_rows.hpp"

namespace ovspec::OVSPEC_ISA::number_path {

constexpr std::size_t chunk_inputs = 256;
constexpr std::size_t tile_width = 2 * lanes; // neurons whose sums the registers hold, for most_rows rows

// What one tile of a chunk reads, and the totals that it adds to.
struct Tile {
    const std::uint8_t* weights; // `[inputs, 32]` f32 or f16, `[inputs / 2, 32]` pairs, or integers as stored
    const std::uint8_t* rows;    // of a block, at the chunk's first input
    std::size_t steps;           // inputs, or pairs of them
    const float* scales;         // of integer weights, else null; 32 floats further, their zero points
    float* totals;               // `[rows, 32]`
    bool first;                  // chunk of an output
};

template <std::size_t R> OVSPEC_INLINE void join(const Tile& tile, const Vec (&sums)[R][2]) {
#pragma GCC unroll 2
    for (std::size_t v = 0; v < 2; v++) {
        const Vec scale = tile.scales ? load(tile.scales + v * lanes) : splat(1.0f);
#pragma GCC unroll 12
        for (std::size_t r = 0; r < R; r++) {
            float* total = tile.totals + r * panel_width + v * lanes;
            const Vec before = tile.first ? Vec{} : load(total);
            store(total, fused(sums[r][v], scale, before));
        }
    }
}

// The weights of a vector of neurons.
template <bool halves> OVSPEC_INLINE Vec number(const std::uint8_t* weights, std::size_t vector) {
    if constexpr (halves)
        return from_f16(load_as<HalfVec>(weights + vector * sizeof(HalfVec)));
    else
        return load_as<Vec>(weights + vector * sizeof(Vec));
}

// Asks for the weights that come `panels::ahead` bytes later, one step's 128 bytes.
OVSPEC_INLINE void ask(const std::uint8_t* weights) {
    __builtin_prefetch(weights + panels::ahead, 0, 2);
    __builtin_prefetch(weights + panels::ahead + 64, 0, 2);
}

constexpr std::size_t step_bytes = panel_width * sizeof(float);

// R rows of f32 times weights of f32, or of f16.
template <bool halves, std::size_t R> __attribute__((noinline)) void add_numbers(const Tile& tile) {
    Vec sums[R][2] = {};
    const float* rows = (const float*)tile.rows;
    const std::uint8_t* weights = tile.weights;
    for (std::size_t k = 0; k < tile.steps; k++, rows += R, weights += step_bytes / (halves ? 2 : 1)) {
        ask(weights);
        const Vec low = number<halves>(weights, 0), high = number<halves>(weights, 1);
#pragma GCC unroll 12
        for (std::size_t r = 0; r < R; r++) {
            const Vec value = splat(rows[r]);
            sums[r][0] = fused(low, value, sums[r][0]);
            sums[r][1] = fused(high, value, sums[r][1]);
        }
    }
    join<R>(tile, sums);
}

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

// The sum of two products and `to`, the second one first; each sum is rounded to the nearest.
template <bool hardware> OVSPEC_INLINE Vec add_pair(Vec to, UVec weights, UVec values) {
    if constexpr (hardware)
        return add_pair_in_hardware(to, weights, values);
    const UVec upper = UVec{} + 0xffff0000u;
    const Vec second = fused((Vec)(weights & upper), (Vec)(values & upper), to);
    return fused((Vec)(weights << 16), (Vec)(values << 16), second);
}

// R rows of pairs of bf16 times pairs of weights.
template <bool hardware, std::size_t R> __attribute__((noinline)) void add_pairs(const Tile& tile) {
    Vec sums[R][2] = {};
    const std::uint32_t* rows = (const std::uint32_t*)tile.rows;
    const std::uint8_t* weights = tile.weights;
    for (std::size_t k = 0; k < tile.steps; k++, rows += R, weights += step_bytes) {
        ask(weights);
        const UVec low = load_as<UVec>(weights), high = load_as<UVec>(weights + sizeof(UVec));
#pragma GCC unroll 12
        for (std::size_t r = 0; r < R; r++) {
            const UVec value = UVec{} + rows[r];
            sums[r][0] = add_pair<hardware>(sums[r][0], low, value);
            sums[r][1] = add_pair<hardware>(sums[r][1], high, value);
        }
    }
    join<R>(tile, sums);
}

// One row of pairs times P panels, `panel_bytes` apart. The sums of one panel alone would wait for each
// other.
template <bool hardware, std::size_t P>
__attribute__((noinline)) void add_panels(const Tile& tile, std::size_t panel_bytes) {
    Vec sums[P][2] = {};
    const std::uint32_t* row = (const std::uint32_t*)tile.rows;
    for (std::size_t k = 0; k < tile.steps; k++) {
        const UVec value = UVec{} + row[k];
        const std::uint8_t* weights = tile.weights + k * step_bytes;
#pragma GCC unroll 4
        for (std::size_t p = 0; p < P; p++, weights += panel_bytes) {
            ask(weights);
            sums[p][0] = add_pair<hardware>(sums[p][0], load_as<UVec>(weights), value);
            sums[p][1] = add_pair<hardware>(sums[p][1], load_as<UVec>(weights + sizeof(UVec)), value);
        }
    }
    join<P>(tile, sums);
}

// R rows of f32 times integers of `format` in units of four inputs.
template <WeightFormat format, std::size_t R> __attribute__((noinline)) void add_integers(const Tile& tile) {
    constexpr std::size_t units = format == WeightFormat::u4 ? 2 : 1; // in 128 bytes
    const Vec zero_points[2] = {load(tile.scales + panel_width), load(tile.scales + panel_width + lanes)};
    Vec sums[R][2] = {};
    const float* rows = (const float*)tile.rows;
    const std::uint8_t* weights = tile.weights;
    for (std::size_t k = 0; k < tile.steps; k += 4 * units, weights += panels::quad_bytes) {
        ask(weights);
        const UVec stored[2] = {load_as<UVec>(weights), load_as<UVec>(weights + sizeof(UVec))};
#pragma GCC unroll 8
        for (std::size_t i = 0; i < 4 * units; i++, rows += R) {
            // The second unit lies in the upper halves of the bytes.
            const std::uint32_t shift = 8 * (i % 4) + 4 * (i / 4);
            Vec numbers[2];
            for (std::size_t v = 0; v < 2; v++)
                numbers[v] =
                    __builtin_convertvector((IVec)(stored[v] >> shift & (units == 2 ? 15u : 255u)), Vec) -
                    zero_points[v];
#pragma GCC unroll 12
            for (std::size_t r = 0; r < R; r++) {
                const Vec value = splat(rows[r]);
                sums[r][0] = fused(numbers[0], value, sums[r][0]);
                sums[r][1] = fused(numbers[1], value, sums[r][1]);
            }
        }
    }
    join<R>(tile, sums);
}

// Weights as a tile reads them.
enum class TileForm { numbers, halves, pairs, bytes, nibbles };

typedef void (*AddTile)(const Tile&);

template <std::size_t R> struct Adder {
    static AddTile of(std::size_t rows, TileForm form, bool hardware) {
        if (rows != R)
            return Adder<R - 1>::of(rows, form, hardware);
        switch (form) {
        case TileForm::numbers:
            return add_numbers<false, R>;
        case TileForm::halves:
            return add_numbers<true, R>;
        case TileForm::bytes:
            return add_integers<WeightFormat::u8, R>;
        case TileForm::nibbles:
            return add_integers<WeightFormat::u4, R>;
        case TileForm::pairs:
            break;
        }
        if constexpr (may_multiply_pairs)
            return hardware ? add_pairs<true, R> : add_pairs<false, R>;
        return add_pairs<false, R>;
    }
};
template <> struct Adder<0> {
    static AddTile of(std::size_t, TileForm, bool) { return nullptr; }
};

typedef void (*AddPanels)(const Tile&, std::size_t panel_bytes);

template <bool hardware> OVSPEC_INLINE AddPanels panels_adder(std::size_t panels) {
    const AddPanels adders[most_panels] = {add_panels<hardware, 1>, add_panels<hardware, 2>,
                                           add_panels<hardware, 3>, add_panels<hardware, 4>};
    return adders[panels - 1];
}

// Inputs that share a scale: of integers a group, else all of them.
OVSPEC_INLINE std::size_t span_of(const LinearWeights& w) {
    return w.groups == 1 ? w.padded() : w.group_size();
}

// Weights of some inputs as f32 `[inputs, 32]`, less their zero points. `data` is where the first one lies.
OVSPEC_INLINE void widen_halves(const std::uint8_t* data, std::size_t inputs, float* to) {
    constexpr std::size_t bytes = panel_width * 2;
    for (std::size_t k = 0; k < inputs; k++, data += bytes, to += panel_width) {
        __builtin_prefetch(data + panels::ahead, 0, 2);
#pragma GCC unroll 8
        for (std::size_t n = 0; n < panel_width; n += lanes)
            store(to + n, from_f16(load_as<HalfVec>(data + 2 * n)));
    }
}

OVSPEC_INLINE void widen_pairs(const std::uint8_t* data, std::size_t inputs, float* to) {
    for (std::size_t k = 0; k < inputs; k += 2, data += step_bytes, to += 2 * panel_width) {
        ask(data);
#pragma GCC unroll 8
        for (std::size_t n = 0; n < panel_width; n += lanes) {
            const UVec pair = load_as<UVec>(data + 4 * n);
            store(to + n, (Vec)(pair << 16));
            store(to + panel_width + n, (Vec)(pair & (UVec{} + 0xffff0000u)));
        }
    }
}

template <WeightFormat format>
OVSPEC_INLINE void widen_integers(const LinearWeights& w, const std::uint8_t* panel, std::size_t group,
                                  const std::uint8_t* data, std::size_t inputs, float* to) {
    for (std::size_t n = 0; n < panel_width; n += lanes) {
        const Vec zero_point = panels::Scales(w, panel, group, n).zero_point;
        panels::for_quads<format>(data + 4 * n, inputs / 4, true,
                                  [&](IVec quad, std::size_t q) __attribute__((always_inline)) {
#pragma GCC unroll 4
                                      for (unsigned byte = 0; byte < 4; byte++) {
                                          const IVec number = (IVec)(((UVec)quad >> (8 * byte)) & 255u);
                                          store(to + (4 * q + byte) * panel_width + n,
                                                __builtin_convertvector(number, Vec) - zero_point);
                                      }
                                  });
    }
}

// Halves and integers become numbers in registers for few blocks of rows, and in memory for more.
OVSPEC_INLINE TileForm form_of(const LinearWeights& w, std::size_t rows) {
    if (takes_pairs(w))
        return TileForm::pairs;
    if (w.integers() && rows <= most_rows)
        return w.format == WeightFormat::u8 ? TileForm::bytes : TileForm::nibbles;
    return w.format == WeightFormat::f16 && rows <= 2 * most_rows ? TileForm::halves : TileForm::numbers;
}

// A chunk of a panel's weights as tiles read them: where they lie, or in `widened`.
OVSPEC_INLINE const std::uint8_t* chunk_of(const LinearWeights& w, TileForm form, const std::uint8_t* panel,
                                           std::size_t begin, std::size_t inputs, float* widened) {
    const std::uint8_t* data = panel + w.data_at() + begin * w.data_bits() * panel_width / 8;
    if (form != TileForm::numbers || w.format == WeightFormat::f32)
        return data;
    switch (w.format) {
    case WeightFormat::f16:
        widen_halves(data, inputs, widened);
        break;
    case WeightFormat::bf16:
        widen_pairs(data, inputs, widened);
        break;
    case WeightFormat::u8:
        widen_integers<WeightFormat::u8>(w, panel, 0, data, inputs, widened);
        break;
    case WeightFormat::u4:
        widen_integers<WeightFormat::u4>(w, panel, begin / span_of(w), data, inputs, widened);
        break;
    default:
        break;
    }
    return (const std::uint8_t*)widened;
}

// One chunk of weights, `[32]` scales and zero points, and the totals of all rows, `[panels, rows, 32]`.
OVSPEC_INLINE std::size_t scratch_floats(std::size_t rows) {
    return (chunk_inputs + 2 + most_panels * rows) * panel_width;
}

// A call's rows, and how tiles take them.
struct Rows {
    const std::uint8_t* packed;
    RowBlocks blocks;
    std::size_t block_bytes, of_step; // inputs of a step
    TileForm form;
    AddTile most, less; // for blocks of `blocks.most` rows, and of one less

    OVSPEC_INLINE_MEMBER Rows(const LinearWeights& w, const std::uint8_t* data, std::size_t count)
        : packed(data), blocks(blocks_of(count)), block_bytes(packed_bytes(w, blocks.most)),
          of_step(takes_pairs(w) ? 2 : 1), form(form_of(w, count)) {
        const bool hardware = multiplies_pairs();
        most = Adder<most_rows>::of(blocks.most, form, hardware);
        less = Adder<most_rows>::of(blocks.most - 1, form, hardware);
    }
};

// Adds the products of `inputs` inputs from `begin` on to the totals of a panel.
OVSPEC_INLINE void add_chunk(const LinearWeights& w, const std::uint8_t* panel, std::size_t begin,
                             std::size_t inputs, const Rows& rows, float* widened, float* totals) {
    const std::uint8_t* weights = chunk_of(w, rows.form, panel, begin, inputs, widened);
    const std::size_t neuron_bytes = rows.form == TileForm::halves ? 2 : 4; // of a step
    float* scales = widened + chunk_inputs * panel_width;
    if (w.integers())
        for (std::size_t n = 0; n < panel_width; n += lanes) {
            const panels::Scales found(w, panel, begin / span_of(w), n);
            store(scales + n, found.scale);
            store(scales + panel_width + n, found.zero_point);
        }
    for (std::size_t n = 0; n < panel_width; n += tile_width)
        for (std::size_t block = 0; block < rows.blocks.count; block++) {
            const std::size_t row = rows.blocks.begin(block), some = rows.blocks.begin(block + 1) - row;
            const AddTile add = some == rows.blocks.most ? rows.most : rows.less;
            add({weights + n * neuron_bytes,
                 rows.packed + block * rows.block_bytes + begin / rows.of_step * some * sizeof(float),
                 inputs / rows.of_step, w.integers() ? scales + n : nullptr, totals + row * panel_width + n,
                 begin == 0});
        }
}

// One row of pairs times up to most_panels panels, whose totals are `[panels, 32]`.
OVSPEC_INLINE void multiply_row(const LinearWeights& w, std::size_t first, std::size_t count,
                                const std::uint8_t* packed, const PanelTarget* targets, float* totals) {
    AddPanels add = panels_adder<false>(count);
    if constexpr (may_multiply_pairs)
        add = multiplies_pairs() ? panels_adder<true>(count) : add;
    for (std::size_t begin = 0, inputs; begin < w.padded(); begin += inputs) {
        const std::size_t left = w.padded() - begin;
        inputs = left < chunk_inputs ? left : chunk_inputs;
        for (std::size_t n = 0; n < panel_width; n += tile_width)
            add({w.panel(first) + begin / 2 * step_bytes + n * 4, packed + begin / 2 * sizeof(float),
                 inputs / 2, nullptr, totals + n, begin == 0},
                w.panel_bytes());
    }
    for (std::size_t p = 0; p < count; p++)
        for (std::size_t n = 0; n < panel_width; n += lanes)
            panels::write(targets[p], 0, n, load(totals + p * panel_width + n));
}

// Up to most_panels panels. Those of many rows take a chunk of the inputs together, whose rows stay in the
// L2 cache; few rows stream one panel after the other.
OVSPEC_INLINE void product(const LinearWeights& w, std::size_t first, std::size_t count,
                           const std::uint8_t* packed, std::size_t row_count, const PanelTarget* targets,
                           float* scratch) {
    if (row_count == 1 && takes_pairs(w))
        return multiply_row(w, first, count, packed, targets, scratch);
    const Rows rows(w, packed, row_count);
    const std::size_t together = rows.blocks.count > 1 ? count : 1, span = span_of(w);
    float* totals = scratch + (chunk_inputs + 2) * panel_width;
    for (std::size_t p = 0; p < count; p += together) {
        for (std::size_t begin = 0, inputs; begin < w.padded(); begin += inputs) {
            const std::size_t left = span - begin % span;
            inputs = left < chunk_inputs ? left : chunk_inputs;
            for (std::size_t i = 0; i < together; i++)
                add_chunk(w, w.panel(first + p + i), begin, inputs, rows, scratch,
                          totals + i * row_count * panel_width);
        }
        for (std::size_t i = 0; i < together; i++)
            for (std::size_t row = 0; row < row_count; row++)
                for (std::size_t n = 0; n < panel_width; n += lanes)
                    panels::write(targets[p + i], row, n,
                                  load(totals + (i * row_count + row) * panel_width + n));
    }
}

} // namespace ovspec::OVSPEC_ISA::number_path
