// What LoRA adapters add to the outputs of a linear layer, chosen row by row: scale * B (A x). Raw pointers
// only, no OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/inline.hpp"

namespace ovspec {

// One product beside a layer: A `[rank, inputs]`, and B in panels, `[panels, rank, panel_width]`.
struct LowRank {
    const float* a;
    const float* b;
    std::size_t rank;
    float scale;
};

// The adapters of a row as adapters.py packs them, numbers of 64 bits at an address: how many layers there
// are; for each of them, and behind the last, where its products begin; then A, B, rank and scale (a number
// of 64 bits too) of each product.
class AdapterTable {
public:
    OVSPEC_INLINE_MEMBER explicit AdapterTable(std::uint64_t address)
        : numbers_(reinterpret_cast<const std::uint64_t*>(address)) {}

    OVSPEC_INLINE_MEMBER std::size_t layers() const { return numbers_[0]; }
    OVSPEC_INLINE_MEMBER std::size_t begin(std::size_t layer) const { return numbers_[1 + layer]; }
    OVSPEC_INLINE_MEMBER LowRank product(std::size_t index) const {
        const std::uint64_t* from = numbers_ + 2 + layers() + 4 * index;
        double scale;
        __builtin_memcpy(&scale, from + 3, sizeof(scale));
        return {reinterpret_cast<const float*>(from[0]), reinterpret_cast<const float*>(from[1]), from[2],
                (float)scale};
    }

private:
    const std::uint64_t* numbers_;
};

// The adapters of a pass beside one call of Linear.
struct PassAdapters {
    const std::uint8_t* tables; // the address of each row's AdapterTable, 64 bits; 0: none
    const std::int64_t* layers; // the number of each output's layer in them; below 0: it has none
};

} // namespace ovspec
