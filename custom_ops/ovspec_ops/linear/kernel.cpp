#include "linear/kernel.hpp"

#include "common/simd.hpp"
#include "linear/low_rank.hpp"
#include "linear/number_path.hpp"
#ifdef OVSPEC_DOT
#include "linear/digit_rows.hpp"
#include "linear/dot_path.hpp"
#endif
#ifdef OVSPEC_BYTES
#include "linear/byte_path.hpp"
#endif
#ifdef OVSPEC_AMX
#include "linear/tile_path.hpp"
#endif

namespace ovspec::OVSPEC_ISA {
namespace {

// Format of a packed row; it does not depend on the number of rows.
enum class RowForm {
    numbers, // f32, or bf16
    digits,  // integers of 16 bits
    bytes,   // integers of 8 bits
};

RowForm form_of([[maybe_unused]] const LinearWeights& weights) {
#ifdef OVSPEC_DOT
    if (weights.integers() && weights.row_bits != 32) {
#ifdef OVSPEC_BYTES
        if (weights.row_bits == 8)
            return RowForm::bytes;
#endif
        return RowForm::digits;
    }
#endif
    return RowForm::numbers;
}

RowBlocks blocks(const LinearWeights& weights, std::size_t rows) {
    if (form_of(weights) == RowForm::numbers)
        return number_path::blocks_of(rows);
    return {rows, (rows + block_rows - 1) / block_rows, rows < block_rows ? rows : block_rows, false};
}

std::size_t packed_bytes(const LinearWeights& weights, std::size_t rows) {
    switch (form_of(weights)) {
#ifdef OVSPEC_BYTES
    case RowForm::bytes:
        return byte_rows::BlockLayout(weights, rows).bytes;
#endif
#ifdef OVSPEC_DOT
    case RowForm::digits:
        return digit_rows::BlockLayout(weights, rows).bytes;
#endif
    default:
        return number_path::packed_bytes(weights, rows);
    }
}

void pack(const LinearWeights& weights, const float* values, std::size_t count,
          [[maybe_unused]] std::size_t rows, std::uint8_t* packed) {
    switch (form_of(weights)) {
#ifdef OVSPEC_BYTES
    case RowForm::bytes:
        return byte_rows::pack(weights, values, count, rows, packed);
#endif
#ifdef OVSPEC_DOT
    case RowForm::digits:
        return digit_rows::pack(weights, values, count, rows, packed);
#endif
    default:
        return number_path::pack(weights, values, count, packed);
    }
}

std::size_t scratch_floats(const LinearWeights& weights, std::size_t rows) {
    if (form_of(weights) == RowForm::numbers)
        return number_path::scratch_floats(rows);
#ifdef OVSPEC_AMX
    return tile_path::scratch_bytes(weights, rows) / sizeof(float) + 1;
#else
    return 0;
#endif
}

#ifdef OVSPEC_DOT
template <WeightFormat format>
void integer_product(const LinearWeights& weights, std::size_t first, std::size_t count,
                     const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets,
                     [[maybe_unused]] float* scratch) {
#ifdef OVSPEC_AMX
    if (tile_path::serves(weights, rows))
        return tile_path::product<format>(weights, first, count, packed, rows, targets, scratch);
#endif
#ifdef OVSPEC_BYTES
    if (weights.row_bits == 8)
        return byte_path::product<format>(weights, first, count, packed, rows, targets);
#endif
    dot_path::product<format>(weights, first, count, packed, rows, targets);
}
#endif

void product(const LinearWeights& weights, std::size_t first, std::size_t count, const std::uint8_t* packed,
             std::size_t rows, const PanelTarget* targets, float* scratch) {
#ifdef OVSPEC_DOT
    if (form_of(weights) != RowForm::numbers) {
        if (weights.format == WeightFormat::u8)
            return integer_product<WeightFormat::u8>(weights, first, count, packed, rows, targets, scratch);
        return integer_product<WeightFormat::u4>(weights, first, count, packed, rows, targets, scratch);
    }
#endif
    number_path::product(weights, first, count, packed, rows, targets, scratch);
}

void low_rank_down(const LowRank& of, const float* x, std::size_t inputs, std::size_t rows, float* values,
                   std::size_t stride) {
    low_rank::down(of, x, inputs, rows, values, stride);
}

void low_rank_up(const float* values, std::size_t stride, const float* b, std::size_t rank, std::size_t rows,
                 std::size_t width, float* y, std::size_t y_stride) {
    low_rank::up(values, stride, b, rank, rows, width, y, y_stride);
}

} // namespace

const LinearKernels linear_kernels = {blocks,  packed_bytes,  pack,       scratch_floats,
                                      product, low_rank_down, low_rank_up};

} // namespace ovspec::OVSPEC_ISA
