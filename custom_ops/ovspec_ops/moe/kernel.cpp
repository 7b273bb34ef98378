#include "moe/kernel.hpp"

#include "common/sigmoid.hpp"
#include "common/simd.hpp"
#include "moe/dequantised.hpp"
#if defined(OVSPEC_DOT)
#include "moe/digits.hpp"
#endif

namespace ovspec::OVSPEC_ISA {
namespace {

constexpr std::size_t tile_rows = 3;
// Bytes of packed rows that stay in the L1 cache while a task's weights stream through it.
constexpr std::size_t cached_bytes = 24 * 1024;

constexpr bool in_digits([[maybe_unused]] WeightFormat format) {
#if defined(OVSPEC_DOT)
    return format == WeightFormat::u8 || format == WeightFormat::u4;
#else
    return false;
#endif
}

// Neurons whose sums stay in registers: digits take two for each, and vectors of 8 lanes have 16 registers.
constexpr std::size_t tile_neurons(WeightFormat format) {
    return in_digits(format) && lanes == 8 ? 2 : 4;
}

std::size_t packed_bytes(WeightFormat format, std::size_t in) {
#if defined(OVSPEC_DOT)
    if (in_digits(format))
        return digits::packed_bytes(format, in);
#endif
    return dequantised::packed_bytes(format, in);
}

void pack(WeightFormat format, const float* values, std::size_t in, std::uint8_t* packed) {
#if defined(OVSPEC_DOT)
    if (in_digits(format))
        return digits::pack(format, values, in, packed);
#endif
    dequantised::pack(format, values, in, packed);
}

// Rows against N neurons.
template <WeightFormat format, std::size_t N>
void neurons(const ExpertMatrix& matrix, std::size_t neuron, const std::uint8_t* const* rows,
             std::size_t count, float* y, std::size_t stride) {
#if defined(OVSPEC_DOT)
    digits::Groups<format == WeightFormat::u4 ? N : 1> groups;
    if constexpr (format == WeightFormat::u4)
        digits::read_groups<N>(matrix, neuron, groups);
#endif
    const auto tile = [&](auto size, const std::uint8_t* const* some, std::size_t ahead, float* dots) {
        constexpr std::size_t R = size;
#if defined(OVSPEC_DOT)
        if constexpr (format == WeightFormat::u8)
            return digits::tile_u8<N, R>(matrix, neuron, some, ahead, dots);
        if constexpr (format == WeightFormat::u4)
            return digits::tile_u4<N, R>(matrix, neuron, some, groups, ahead, dots);
#endif
        dequantised::tile<format, N, R>(matrix, neuron, some, ahead, dots);
    };
    for (std::size_t r = 0; r < count; r += tile_rows) {
        const std::size_t size = count - r < tile_rows ? count - r : tile_rows;
        // While the first rows read weights from memory, prefetch those of the next neurons.
        const std::size_t ahead = r == 0 ? N * matrix.row_bytes : 0;
        float dots[tile_rows * N];
        if (size == 3)
            tile(Count<3>{}, rows + r, ahead, dots);
        else if (size == 2)
            tile(Count<2>{}, rows + r, ahead, dots);
        else
            tile(Count<1>{}, rows + r, ahead, dots);
        for (std::size_t i = 0; i < size; i++)
            for (std::size_t n = 0; n < N; n++)
                y[(r + i) * stride + n] = dots[i * N + n];
    }
}

template <WeightFormat format>
void product_of(const ExpertMatrix& matrix, std::size_t neuron, std::size_t count,
                const std::uint8_t* const* rows, std::size_t row_count, float* y, std::size_t stride) {
    const std::size_t tiles = cached_bytes / packed_bytes(format, matrix.in) / tile_rows;
    const std::size_t step = (tiles > 1 ? tiles : 1) * tile_rows;
    for (std::size_t r = 0; r < row_count; r += step) {
        const std::size_t some = row_count - r < step ? row_count - r : step;
        float* to = y + r * stride;
        constexpr std::size_t N = tile_neurons(format);
        std::size_t n = 0;
        for (; n + N <= count; n += N)
            neurons<format, N>(matrix, neuron + n, rows + r, some, to + n, stride);
        for (; n < count; n++)
            neurons<format, 1>(matrix, neuron + n, rows + r, some, to + n, stride);
    }
}

void product(const ExpertMatrix& matrix, std::size_t expert, std::size_t first, std::size_t count,
             const std::uint8_t* const* rows, std::size_t row_count, float* y, std::size_t stride) {
    const std::size_t neuron = expert * matrix.out + first;
    switch (matrix.format) {
    case WeightFormat::f32:
        return product_of<WeightFormat::f32>(matrix, neuron, count, rows, row_count, y, stride);
    case WeightFormat::f16:
        return product_of<WeightFormat::f16>(matrix, neuron, count, rows, row_count, y, stride);
    case WeightFormat::u8:
        return product_of<WeightFormat::u8>(matrix, neuron, count, rows, row_count, y, stride);
    default:
        return product_of<WeightFormat::u4>(matrix, neuron, count, rows, row_count, y, stride);
    }
}

void swiglu(float* gate, const float* up, std::size_t count) {
    change_all(gate, count, [=](std::size_t i, Vec g, std::size_t left) __attribute__((always_inline)) {
        return times_sigmoid(g * load_some(up + i, left), g);
    });
}

void clamped_swiglu(float* gate, const float* up, const GatedActivation& activation, std::size_t count) {
    const Vec limit = splat(activation.limit), alpha = splat(activation.alpha);
    change_all(gate, count, [=](std::size_t i, Vec g, std::size_t left) __attribute__((always_inline)) {
        const Vec u = load_some(up + i, left);
        g = g > limit ? limit : g;
        const Vec clamped = u > limit ? limit : u < -limit ? -limit : u;
        return times_sigmoid(g * (clamped + 1.0f), g * alpha);
    });
}

void add(float* to, const float* from, std::size_t count) {
    for (std::size_t i = 0; i < count; i++)
        to[i] += from[i];
}

void add_scaled(float* to, const float* from, float share, std::size_t count) {
    change_all(to, count, [=](std::size_t i, Vec x, std::size_t left) __attribute__((always_inline)) {
        return fused(load_some(from + i, left), splat(share), x);
    });
}

} // namespace

const MoeKernels moe_kernels = {packed_bytes, pack, product, swiglu, clamped_swiglu, add, add_scaled};

} // namespace ovspec::OVSPEC_ISA
