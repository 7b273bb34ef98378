// Where the 4-bit weights of a row lie: so that every 32-bit lane of a vector holds weights of one group, and
// integer sums run over the whole row.
#pragma once

#include <cstddef>

#include "common/inline.hpp"

namespace ovspec {

// A row of `groups * group_size` weights is cut into chunks of 16, 8, 4, 2 or 1 groups, the largest first. In
// a chunk of g groups, 16 / g lanes of four bytes belong to each.
struct RowChunk {
    std::size_t first; // group
    std::size_t groups;
    std::size_t vectors; // of 64 weights each; the last ones of a group are padding

    OVSPEC_INLINE_MEMBER std::size_t lanes() const { return 16 / groups; }
    // Weights of a group that lie side by side.
    OVSPEC_INLINE_MEMBER std::size_t run() const { return 4 * lanes(); }
};

OVSPEC_INLINE RowChunk row_chunk(std::size_t first, std::size_t groups, std::size_t group_size) {
    RowChunk chunk{first, 16, 0};
    while (chunk.groups > groups - first)
        chunk.groups /= 2;
    chunk.vectors = (group_size + chunk.run() - 1) / chunk.run();
    chunk.vectors += chunk.vectors % 2; // two weights a byte
    return chunk;
}

// Vectors of 64 weights in a row of 4 bits, and its chunks.
struct RowSize {
    std::size_t vectors;
    std::size_t chunks;
};

OVSPEC_INLINE RowSize row_size(std::size_t groups, std::size_t group_size) {
    RowSize size{0, 0};
    for (std::size_t first = 0; first < groups; size.chunks++) {
        const RowChunk chunk = row_chunk(first, groups, group_size);
        size.vectors += chunk.vectors;
        first += chunk.groups;
    }
    return size;
}

} // namespace ovspec
