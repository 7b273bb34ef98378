#include "decoder_layers/kernel.hpp"

#include "common/sigmoid.hpp"
#include "common/simd.hpp"
#include "gated_mlp/activation.hpp"

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

// Sum of (x - mean)^2, or of x with `squares` false.
template <bool squares> OVSPEC_INLINE float sum_of(const float* x, std::size_t size, float mean) {
    Vec total = {};
    for (std::size_t i = 0; i < size; i += lanes) {
        const std::size_t count = size - i < lanes ? size - i : lanes;
        if constexpr (squares) {
            Vec distance = load_some(x + i, count) - mean;
            if (count < lanes)
                distance = (Vec)((UVec)distance & (UVec)(lane_numbers() < (std::int32_t)count));
            total = fused(distance, distance, total);
        } else {
            total += load_some(x + i, count);
        }
    }
    return sum(total);
}

void layer_norm(const float* x, const float* weights, std::size_t width, std::size_t size, float epsilon,
                float* y) {
    for (std::size_t part = 0; part < width; part += size) {
        const float mean = sum_of<false>(x + part, size, 0.0f) / (float)size;
        const float variance = sum_of<true>(x + part, size, mean) / (float)size;
        const Vec factor = splat(1.0f / root(variance + epsilon));
        fill(y + part, size, [&](std::size_t i, std::size_t count) {
            return (load_some(x + part + i, count) - mean) * factor * load_some(weights + i, count);
        });
    }
}

void rope(const float* x, const float* cos, const float* sin, std::size_t width, std::size_t size,
          std::size_t angles, float* y) {
    const std::size_t half = size / 2, other = angles - half; // where the second half's angles begin
    for (std::size_t part = 0; part < width; part += size) {
        const float *first = x + part, *second = first + half;
        fill(y + part, half, [&](std::size_t i, std::size_t count) {
            return load_some(first + i, count) * load_some(cos + i, count) -
                   load_some(second + i, count) * load_some(sin + i, count);
        });
        fill(y + part + half, half, [&](std::size_t i, std::size_t count) {
            return load_some(second + i, count) * load_some(cos + other + i, count) +
                   load_some(first + i, count) * load_some(sin + other + i, count);
        });
    }
}

void rope_pairs(const float* x, const float* cos, const float* sin, std::size_t width, std::size_t size,
                std::size_t, float* y) {
    for (std::size_t part = 0; part < width; part += size)
        for (std::size_t i = 0; i < size; i += 2) {
            const float first = x[part + i], second = x[part + i + 1];
            y[part + i] = first * cos[i] - second * sin[i];
            y[part + i + 1] = second * cos[i + 1] + first * sin[i + 1];
        }
}

void divide(float* values, std::size_t width, float by) {
    change_all(values, width, [&](std::size_t, Vec x, std::size_t) { return x / by; });
}

void softmax(const float* x, std::size_t width, float* y) {
    float largest = x[0];
    for (std::size_t i = 1; i < width; i++)
        largest = x[i] > largest ? x[i] : largest;
    fill(y, width, [&](std::size_t i, std::size_t count) {
        return exp_nonpositive(load_some(x + i, count) - largest);
    });
    divide(y, width, sum_of<false>(y, width, 0.0f));
}

void normalize(const float* x, std::size_t width, float* y) {
    const float total = sum_of<false>(x, width, 0.0f);
    fill(y, width, [&](std::size_t i, std::size_t count) { return load_some(x + i, count) / total; });
}

void add(const float* a, const float* b, std::size_t width, float* y) {
    fill(y, width,
         [&](std::size_t i, std::size_t count) { return load_some(a + i, count) + load_some(b + i, count); });
}

void multiply(const float* a, const float* b, std::size_t width, float* y) {
    fill(y, width,
         [&](std::size_t i, std::size_t count) { return load_some(a + i, count) * load_some(b + i, count); });
}

void scale(const float* x, float factor, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) { return load_some(x + i, count) * factor; });
}

void silu(const float* x, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        return activation::value<Activation::silu>(load_some(x + i, count));
    });
}

void gelu_tanh(const float* x, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        return activation::value<Activation::gelu_tanh>(load_some(x + i, count));
    });
}

void gelu_erf(const float* x, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        return activation::value<Activation::gelu_erf>(load_some(x + i, count));
    });
}

void relu(const float* x, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        const Vec value = load_some(x + i, count);
        return value < 0.0f ? Vec{} : value; // NaN stays NaN
    });
}

void sigmoid(const float* x, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        return times_sigmoid(splat(1.0f), load_some(x + i, count));
    });
}

// (1 - e) / (1 + e) with e = exp(-2 |x|), and the sign of x; near 0, where 1 - e loses digits, x - x^3 / 3.
void tanh(const float* x, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        const Vec value = load_some(x + i, count);
        const Vec e = exp_nonpositive(activation::magnitude(value) * -2.0f);
        const Vec size = (1.0f - e) / (1.0f + e);
        const Vec whole = value < 0.0f ? -size : (value == value ? size : value);
        const Vec small = fused(value * value * value, splat(-1.0f / 3.0f), value);
        return activation::magnitude(value) < 0.05f ? small : whole;
    });
}

void silu_multiply(const float* a, const float* b, std::size_t width, float* y) {
    fill(y, width, [&](std::size_t i, std::size_t count) {
        const Vec x = load_some(a + i, count);
        return times_sigmoid(x, x) * load_some(b + i, count);
    });
}

void numbers(const std::uint8_t* x, WeightFormat format, std::size_t width, float* y) {
    if (format == WeightFormat::f32) {
        __builtin_memcpy(y, x, width * sizeof(float));
        return;
    }
    const auto* halves = (const std::uint16_t*)x;
    fill(y, width, [&](std::size_t i, std::size_t count) {
        const HalfVec some = load_some<HalfVec>(halves + i, count);
        return format == WeightFormat::f16 ? from_f16(some) : from_bf16(some);
    });
}

void integers(const std::uint8_t* x, std::uint8_t sign, const std::uint16_t* scales,
              const std::uint8_t* zero_points, std::size_t groups, std::size_t width, float* y) {
    const std::size_t size = width / groups;
    for (std::size_t g = 0; g < groups; g++) {
        const float scale = scalar_f16((const std::uint8_t*)(scales + g)), zero = (float)zero_points[g];
        fill(y + g * size, size, [&](std::size_t i, std::size_t count) {
            return (to_float(load_some<ByteVec>(x + g * size + i, count) ^ sign) - zero) * scale;
        });
    }
}

std::int32_t largest(const float* x, std::size_t width) {
    Vec best = splat(minus_infinity);
    IVec at = {}, places = lane_numbers(), unknown = {};
    std::size_t i = 0;
    for (; i + lanes <= width; i += lanes, places += (std::int32_t)lanes) {
        const Vec value = load(x + i);
        const IVec better = value > best;
        best = better ? value : best;
        at = better ? places : at;
        unknown |= value != value;
    }
    float top = minus_infinity;
    std::int32_t place = -1, has_nan = 0;
    for (std::size_t lane = 0; lane < lanes; lane++) {
        if (best[lane] > top || (best[lane] == top && place >= 0 && at[lane] < place)) {
            top = best[lane];
            place = at[lane];
        }
        has_nan |= unknown[lane];
    }
    for (; i < width; i++) {
        if (x[i] > top) {
            top = x[i];
            place = (std::int32_t)i;
        }
        has_nan |= x[i] != x[i];
    }
    return has_nan || top == -minus_infinity ? -1 : place;
}

// Sums of a part are f32, those of all parts f64.
double mass_above(const float* x, std::size_t width, float above, float peak, float temperature) {
    constexpr std::size_t part = 64 * lanes;
    double total = 0.0;
    for (std::size_t begin = 0; begin < width; begin += part) {
        Vec mass = {};
        for (std::size_t i = begin; i < width && i < begin + part; i += lanes) {
            const std::size_t count = width - i < lanes ? width - i : lanes;
            const Vec value = load_some(x + i, count);
            const IVec counted = (value > above) & (lane_numbers() < (std::int32_t)count);
            mass += counted ? exp_nonpositive((value - peak) / temperature) : Vec{};
        }
        total += sum(mass);
    }
    return total;
}

} // namespace

const StepKernels step_kernels = {
    rms,       layer_norm, rope, rope_pairs, softmax, normalize,     add,     multiply, scale,   silu,
    gelu_tanh, gelu_erf,   relu, sigmoid,    tanh,    silu_multiply, numbers, integers, largest, mass_above,
};

} // namespace ovspec::OVSPEC_ISA
