// What all kernels do that take a panel `lanes` neurons at a time.
#pragma once

#include "common/simd.hpp"
#include "linear/kernel.hpp"

namespace ovspec::OVSPEC_ISA::panels {

constexpr std::size_t quad_bytes = 4 * panel_width; // four inputs of all neurons
// Distance in bytes at which weights are prefetched into the L2 cache.
constexpr std::size_t ahead = 8192;

// Bytes of one input's weights, all neurons of a panel.
constexpr std::size_t input_bytes(WeightFormat format) {
    return format == WeightFormat::u4 ? panel_width / 2 : panel_width;
}

// Of `lanes` neurons of a panel from `first` on, and a group of inputs.
struct Scales {
    Vec scale, zero_point;

    OVSPEC_INLINE_MEMBER Scales(const LinearWeights& w, const std::uint8_t* panel, std::size_t group,
                                std::size_t first) {
        const std::size_t at = group * panel_width + first;
        scale = from_f16(load_as<HalfVec>(panel + 2 * at));
        zero_point = to_float(load_as<ByteVec>(panel + w.groups * 2 * panel_width + at));
    }
};

// Weights that a part of the rows prefetches into the L2 cache while it reads a panel: at the quads that are
// set in `places`, out of 32, those that it reads soon, or those from `next` on. Where no other part reads
// them
// (`once`), they pass the L2 cache by, so that the host's code and data stay there: README.md, Speed.
struct Asked {
    std::uint32_t places;
    const std::uint8_t* next;
    bool once;

    // Of a panel of `bytes` bytes times `rows` rows, in parts of `most`; this one begins with row `row`. With
    // fewer than two full parts the first asks for its own panel. Else two or four parts ask for a share of
    // the next panel each: memory delivers that while all of them compute.
    OVSPEC_INLINE_MEMBER Asked(const std::uint8_t* panel, std::size_t bytes, std::size_t rows,
                               std::size_t most, std::size_t row)
        : next(nullptr), once(rows <= most) {
        const std::size_t shares = rows >= 4 * most ? 4 : 2, part = row / most;
        if (rows < 2 * most) {
            places = row == 0 ? 0xffffffff : 0;
        } else if (part < shares) {
            places = (shares == 2 ? 0x55555555 : 0x11111111) << part; // one quad of so many
            next = panel + bytes + part * bytes / shares;
        } else {
            places = 0;
        }
    }
};

// add(weights, quad) for `quads` times four inputs of the neurons of V vectors at `data`, bytes of four
// inputs in every lane.
template <WeightFormat format, std::size_t V, class Add>
OVSPEC_INLINE void for_wide_quads(const std::uint8_t* data, std::size_t quads, Asked& asked, const Add& add) {
    constexpr std::size_t bytes = V * sizeof(UVec);
    const UVec nibble = UVec{} + 0x0f0f0f0fu;
    const std::uint8_t* from = asked.next ? asked.next : data + ahead;
    const std::size_t step = asked.next ? bytes : quad_bytes;
    const bool once = asked.once;
    for (std::size_t q = 0; q < quads; data += quad_bytes) {
        if (asked.places >> (format == WeightFormat::u4 ? q / 2 : q) % 32 & 1) {
            if (once)
                for (std::size_t at = 0; at < bytes; at += 64)
                    __builtin_prefetch(from + at, 0, 0);
            else
                for (std::size_t at = 0; at < bytes; at += 64)
                    __builtin_prefetch(from + at, 0, 2);
            from += step;
        }
        IVec low[V], high[V];
#pragma GCC unroll 4
        for (std::size_t v = 0; v < V; v++) {
            const UVec both = load_as<UVec>(data + v * sizeof(UVec));
            low[v] = format == WeightFormat::u8 ? (IVec)both : (IVec)(both & nibble);
            high[v] = (IVec)((both >> 4) & nibble);
        }
        add(low, q++);
        if constexpr (format == WeightFormat::u4)
            add(high, q++);
    }
    if (asked.next)
        asked.next = from;
}

// Vectors of a panel that rows with so many sums a vector take together: all, where half of the registers
// hold them. Lines are then read in the order of memory, which two cores do at 48 GB/s in place of 36, and
// more sums at once do not wait for each other.
constexpr std::size_t vectors_together(std::size_t sums) {
    constexpr std::size_t vectors = panel_width / lanes, registers = lanes == 16 ? 32 : 16;
    return sums * vectors <= registers / 2 ? vectors : 1;
}

// body(Count<R>, row): `rows` rows in parts of `most` and less. No part crosses the border of a block.
template <std::size_t most, class Body> OVSPEC_INLINE void for_rows(std::size_t rows, const Body& body) {
    for (std::size_t row = 0; row < rows;) {
        const std::size_t end = row - row % block_rows + block_rows;
        row += take_rows<most>((rows < end ? rows : end) - row, row, body);
    }
}

// Fetches the lines of rows row to row + rows that write() will fill. Rows of an output lie kilobytes apart
// and mostly in no cache: without it, storing a tile of a prompt takes as long as multiplying 400 inputs.
OVSPEC_INLINE void fetch_target(const PanelTarget& target, std::size_t row, std::size_t rows) {
    constexpr std::size_t line = 64 / sizeof(float);
    for (std::size_t r = row; r < row + rows; r++)
        for (std::size_t i = 0; i < target.width; i += line)
            __builtin_prefetch(target.y + r * target.stride + i, 1);
}

// Values of a row's `lanes` neurons from `first` of the panel on.
OVSPEC_INLINE void write(const PanelTarget& target, std::size_t row, std::size_t first, Vec value) {
    float* to = target.y + row * target.stride + first;
    if (first + lanes <= target.width)
        store(to, value);
    else if (first < target.width)
        store_part(to, value, target.width - first);
}

} // namespace ovspec::OVSPEC_ISA::panels
