// Rows of numbers times panels: f32 rows with weights of any format, or rows of bf16 with weights of bf16.
//
// The order of a sum is the same for any number of rows and threads. The products of a chunk of 256 inputs
// are added in the order of the inputs, from zero; a chunk's sum then joins the total of the output. With
// pairs of bf16 the second of two products is added before the first, as the instruction VDPBF16PS does,
// which also takes denormal numbers for zero.
#pragma once

#include "linear/number_tiles.hpp"

namespace ovspec::OVSPEC_ISA::number_path {

constexpr std::size_t chunk_inputs = 256;

// use(Arithmetic) of a layer.
template <class Use> OVSPEC_INLINE void with_arithmetic(const LinearWeights& w, const Use& use) {
    switch (w.format) {
    case WeightFormat::f32:
        return use(Numbers<WeightFormat::f32>());
    case WeightFormat::f16:
        return use(Numbers<WeightFormat::f16>());
    case WeightFormat::u8:
        return use(Numbers<WeightFormat::u8>());
    case WeightFormat::u4:
        return use(Numbers<WeightFormat::u4>());
    case WeightFormat::bf16:
        if (!takes_pairs(w))
            return use(Numbers<WeightFormat::bf16>());
        if constexpr (may_multiply_pairs)
            if (multiplies_pairs())
                return use(Pairs<true>());
        use(Pairs<false>());
    }
}

// Inputs that share a scale: of integers a group, else all of them.
OVSPEC_INLINE std::size_t span_of(const LinearWeights& w) {
    return w.groups == 1 ? w.padded() : w.group_size();
}

// Whether weights are converted to f32 in memory, once for many blocks of rows. With few rows the tiles
// convert them in registers. AVX2 converts f16 while it loads, so memory gains nothing there.
OVSPEC_INLINE bool widens(const LinearWeights& w, std::size_t rows) {
    if (w.format == WeightFormat::f32 || takes_pairs(w))
        return false;
    if (w.format == WeightFormat::f16)
        return lanes == 16 && rows > 2 * most_rows;
    return rows > (w.format == WeightFormat::u4 ? 8 : 12);
}

// One chunk of weights, `[32]` scales and zero points, and the totals of all rows, `[panels, rows, 32]`.
OVSPEC_INLINE std::size_t scratch_floats(std::size_t rows) {
    return (chunk_inputs + 2 + most_panels * rows) * panel_width;
}

typedef void (*AddTile)(const Tile&);
typedef void (*Widen)(const std::uint8_t* weights, const float* zero_points, std::size_t inputs, float* to);

// The tile of `rows` rows, R at most, and V vectors.
template <class Of, std::size_t V, std::size_t R> OVSPEC_INLINE AddTile tile_of(std::size_t rows) {
    if constexpr (R > 1)
        if (rows < R)
            return tile_of<Of, V, R - 1>(rows);
    return add_tile<Of, R, V>;
}

// A call's rows, and how tiles take them.
struct Rows {
    const std::uint8_t* packed;
    RowBlocks blocks;
    std::size_t block_bytes;
    std::size_t of_step;                  // inputs of a step
    std::size_t vectors;                  // of neurons, of a tile
    std::size_t vector_bytes, unit_bytes; // of weights as stored
    Widen widen;                          // null: tiles read weights as stored
    AddTile most, less;                   // for blocks of `blocks.most` rows, and of one less

    OVSPEC_INLINE_MEMBER Rows(const LinearWeights& w, const std::uint8_t* data, std::size_t count)
        : packed(data), blocks(blocks_of(count)), block_bytes(packed_bytes(w, blocks.most)),
          of_step(takes_pairs(w) ? 2 : 1), widen(nullptr) {
        with_arithmetic(w, [&](auto of) __attribute__((always_inline)) {
            typedef decltype(of) Of;
            vector_bytes = Of::vector_bytes;
            unit_bytes = panel_vectors * Of::vector_bytes;
            // Rows whose sums the registers hold for all neurons of a panel.
            constexpr std::size_t full = Of::most_sums / panel_vectors;
            if (blocks.most <= full)
                return choose<Of, panel_vectors, full>();
            if (!widens(w, count))
                return choose<Of, 2, most_rows>();
            choose<Numbers<WeightFormat::f32>, 2, most_rows>();
            if constexpr (Of::widens)
                widen = number_path::widen<Of::format>;
        });
    }

private:
    template <class Of, std::size_t V, std::size_t R> OVSPEC_INLINE_MEMBER void choose() {
        vectors = V;
        most = tile_of<Of, V, R>(blocks.most);
        less = tile_of<Of, V, R>(blocks.most - 1);
    }
};

// Adds the products of `inputs` inputs from `begin` on to the totals of a panel.
OVSPEC_INLINE void add_chunk(const LinearWeights& w, const std::uint8_t* panel, std::size_t begin,
                             std::size_t inputs, const Rows& rows, float* widened, float* totals) {
    const std::uint8_t* data = panel + w.data_at() + begin * w.data_bits() * panel_width / 8;
    float* scales = widened + chunk_inputs * panel_width;
    if (w.integers())
        for (std::size_t n = 0; n < panel_width; n += lanes) {
            const panels::Scales found(w, panel, begin / span_of(w), n);
            store(scales + n, found.scale);
            store(scales + panel_width + n, found.zero_point + integer_base);
        }
    for (std::size_t v = 0; v < panel_vectors; v += rows.vectors) {
        const std::uint8_t* weights = data + v * rows.vector_bytes;
        std::size_t stride = rows.unit_bytes;
        if (rows.widen) {
            rows.widen(weights, scales + panel_width + v * lanes, inputs, widened);
            weights = (const std::uint8_t*)widened;
            stride = rows.vectors * sizeof(Vec);
        }
        for (std::size_t block = 0; block < rows.blocks.count; block++) {
            const std::size_t row = rows.blocks.begin(block), some = rows.blocks.begin(block + 1) - row;
            const AddTile add = some == rows.blocks.most ? rows.most : rows.less;
            add({weights, stride,
                 rows.packed + block * rows.block_bytes + begin / rows.of_step * some * sizeof(float),
                 inputs / rows.of_step, w.integers() ? scales + v * lanes : nullptr,
                 totals + row * panel_width + v * lanes, begin == 0, block == 0 && !rows.widen});
        }
    }
}

// Panels whose sums of one row do not wait for each other.
constexpr std::size_t panels_together = panel_vectors < 8 ? 8 / panel_vectors : 1;
static_assert(panels_together <= most_panels, "panels of a call");

typedef void (*AddPanels)(const Tile&, std::size_t panel_bytes);

template <class Of, std::size_t P> OVSPEC_INLINE AddPanels adder_of(std::size_t panels) {
    if constexpr (P > 1)
        if (panels < P)
            return adder_of<Of, P - 1>(panels);
    return add_panels<Of, P>;
}

// One row of numbers times up to panels_together panels, whose totals are `[panels, 32]`.
template <class Of>
OVSPEC_INLINE void multiply_row(const LinearWeights& w, std::size_t first, std::size_t count,
                                const std::uint8_t* packed, const PanelTarget* targets, float* totals) {
    const AddPanels add = adder_of<Of, panels_together>(count);
    const std::size_t of_step = takes_pairs(w) ? 2 : 1;
    for (std::size_t begin = 0, inputs; begin < w.padded(); begin += inputs) {
        const std::size_t left = w.padded() - begin;
        inputs = left < chunk_inputs ? left : chunk_inputs;
        add({w.panel(first) + begin * w.data_bits() * panel_width / 8, panel_vectors * Of::vector_bytes,
             packed + begin / of_step * sizeof(float), inputs / of_step, nullptr, totals, begin == 0, true},
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
    if (row_count == 1 && !w.integers())
        return with_arithmetic(w, [&](auto of) __attribute__((always_inline)) {
            if constexpr (!decltype(of)::integers)
                for (std::size_t p = 0; p < count; p += panels_together)
                    multiply_row<decltype(of)>(w, first + p,
                                               count - p < panels_together ? count - p : panels_together,
                                               packed, targets + p, scratch);
        });
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
