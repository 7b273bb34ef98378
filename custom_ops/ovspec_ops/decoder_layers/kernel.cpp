#include "decoder_layers/kernel.hpp"

#include "common/sigmoid.hpp"
#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {
namespace {

// y[i] = made(i, count) for `lanes` values at once, or those that are left.
template <class Make> OVSPEC_INLINE void fill(float* y, std::size_t width, const Make& made) {
    std::size_t i = 0;
    for (; i + lanes <= width; i += lanes)
        store(y + i, made(i, lanes));
    if (i < width)
        store_part(y + i, made(i, width - i), width - i);
}

OVSPEC_INLINE float sum_of_squares(const float* x, std::size_t size) {
    Vec sums[4] = {};
    std::size_t i = 0;
    for (; i + 4 * lanes <= size; i += 4 * lanes)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < 4; v++) {
            const Vec value = load(x + i + v * lanes);
            sums[v] = fused(value, value, sums[v]);
        }
    for (; i < size; i += lanes) {
        const Vec value = load_some(x + i, size - i < lanes ? size - i : lanes);
        sums[0] = fused(value, value, sums[0]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// The built-in function calls the C library for numbers below zero.
OVSPEC_INLINE float root(float x) {
#if defined(__AVX2__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
    return __builtin_sqrtf(x);
#endif
}

void rms(const float* x, const float* weights, std::size_t width, std::size_t size, float epsilon, float* y) {
    for (std::size_t part = 0; part < width; part += size) {
        const float mean = sum_of_squares(x + part, size) / (float)size;
        const Vec factor = splat(1.0f / root(mean + epsilon));
        fill(y + part, size, [&](std::size_t i, std::size_t count) {
            return load_some(x + part + i, count) * factor * load_some(weights + i, count);
        });
    }
}

void rope(const float* x, const float* cos, const float* sin, std::size_t width, std::size_t size, float* y) {
    const std::size_t half = size / 2;
    for (std::size_t part = 0; part < width; part += size) {
        const float *first = x + part, *second = first + half;
        fill(y + part, half, [&](std::size_t i, std::size_t count) {
            return load_some(first + i, count) * load_some(cos + i, count) -
                   load_some(second + i, count) * load_some(sin + i, count);
        });
        fill(y + part + half, half, [&](std::size_t i, std::size_t count) {
            return load_some(second + i, count) * load_some(cos + half + i, count) +
                   load_some(first + i, count) * load_some(sin + half + i, count);
        });
    }
}

void add(const float* a, const float* b, std::size_t width, float* y) {
    fill(y, width,
         [&](std::size_t i, std::size_t count) { return load_some(a + i, count) + load_some(b + i, count); });
}

void silu_multiply(const float* a, const float* b, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        const Vec x = load_some(a + i, count);
        return times_sigmoid(x, x) * load_some(b + i, count);
    });
}

} // namespace

const StepKernels step_kernels = {rms, rope, add, silu_multiply};

} // namespace ovspec::OVSPEC_ISA
