#include "linear/kernel.hpp"

#include "common/simd.hpp"
#include "linear/byte_path.hpp"
#include "linear/digit_rows.hpp"
#include "linear/dot_path.hpp"
#include "linear/float_path.hpp"
#include "linear/tile_path.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace {

std::size_t packed_bytes(const LinearWeights& weights, std::size_t rows) {
#ifdef OVSPEC_BYTES
    if (weights.row_bits == 8)
        return byte_rows::BlockLayout(weights, rows).bytes;
#endif
#ifdef OVSPEC_DOT
    return digit_rows::BlockLayout(weights, rows).bytes;
#else
    return rows * float_path::stride_of(weights) * sizeof(float);
#endif
}

void pack(const LinearWeights& weights, const float* values, std::size_t count, std::size_t rows,
          std::uint8_t* packed) {
#ifdef OVSPEC_BYTES
    if (weights.row_bits == 8)
        return byte_rows::pack(weights, values, count, rows, packed);
#endif
#ifdef OVSPEC_DOT
    digit_rows::pack(weights, values, count, rows, packed);
#else
    float_path::pack(weights, values, count, rows, packed);
#endif
}

std::size_t scratch_floats([[maybe_unused]] const LinearWeights& weights, [[maybe_unused]] std::size_t rows) {
#ifdef OVSPEC_AMX
    return tile_path::scratch_bytes(weights, rows) / sizeof(float) + 1;
#else
    return 0;
#endif
}

template <WeightFormat format>
void product_of(const LinearWeights& weights, std::size_t first, std::size_t count,
                const std::uint8_t* packed, std::size_t rows, const PanelTarget* targets,
                [[maybe_unused]] float* scratch) {
#ifdef OVSPEC_AMX
    if (tile_path::serves(weights))
        return tile_path::product<format>(weights, first, count, packed, rows, targets, scratch);
#endif
#ifdef OVSPEC_BYTES
    if (weights.row_bits == 8)
        return byte_path::product<format>(weights, first, count, packed, rows, targets);
#endif
#ifdef OVSPEC_DOT
    dot_path::product<format>(weights, first, count, packed, rows, targets);
#else
    float_path::product<format>(weights, first, count, packed, rows, targets);
#endif
}

void product(const LinearWeights& weights, std::size_t first, std::size_t count, const std::uint8_t* packed,
             std::size_t rows, const PanelTarget* targets, float* scratch) {
    if (weights.format == WeightFormat::u8)
        product_of<WeightFormat::u8>(weights, first, count, packed, rows, targets, scratch);
    else
        product_of<WeightFormat::u4>(weights, first, count, packed, rows, targets, scratch);
}

} // namespace

extern const LinearKernels linear_kernels;
const LinearKernels linear_kernels = {packed_bytes, pack, scratch_floats, product};

} // namespace OVSPEC_ISA
} // namespace ovspec
