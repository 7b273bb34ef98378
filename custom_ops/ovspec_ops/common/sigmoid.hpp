// The logistic function, for gated activations.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {

// x / (1 + e^-p)
OVSPEC_INLINE Vec times_sigmoid(Vec x, Vec p) {
    const Vec e = exp_nonpositive(p >= 0.0f ? -p : p);
    return x * (p >= 0.0f ? splat(1.0f) : e) / (e + 1.0f);
}

} // namespace ovspec::OVSPEC_ISA
