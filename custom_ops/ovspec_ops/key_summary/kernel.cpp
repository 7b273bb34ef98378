#include "key_summary/kernel.hpp"

#include <cmath>

#include "common/cache_rows.hpp"
#include "key_summary/layout.hpp"

namespace ovspec::OVSPEC_ISA {
namespace {

constexpr float largest = 15.0f;

// Elements d .. of a token's key, or the last `count` < lanes of them and zeros.
template <class Rows>
OVSPEC_INLINE Vec key_at(const Rows& rows, std::size_t t, std::size_t d, std::size_t count) {
    return count == lanes ? value(rows.row(t), d) : value_part(rows.row(t), d, count);
}

struct Range {
    float low, high, poison; // poison: 0, or NaN where a number is not finite
};

// mean[d] of the keys begin .. begin + tokens - 1.
template <class Rows>
OVSPEC_INLINE Range mean_key(const Rows& rows, std::size_t size, std::size_t begin, std::size_t tokens,
                             float* mean) {
    const float share = 1.0f / (float)tokens;
    Vec opposite = splat(-INFINITY), highest = splat(-INFINITY), poison = {}; // opposite: of the lowest
    for (std::size_t d = 0; d < size; d += lanes) {
        const std::size_t count = size - d < lanes ? size - d : lanes;
        Vec total = {};
        for (std::size_t t = begin; t < begin + tokens; t++)
            total += key_at(rows, t, d, count);
        const Vec value = total * share;
        store_part(mean + d, value, count);
        // Lanes beyond the last channel count as the first one does.
        const Vec counted = count == lanes ? value : lane_numbers() < (int)count ? value : splat(mean[0]);
        opposite = max(opposite, -counted);
        highest = max(highest, counted);
        poison += counted * 0.0f;
    }
    return {-max_lane(opposite), max_lane(highest), sum(poison)};
}

// values[d] and values[d + size / 2] as the halves of to[d]: the nearest of 16 numbers, ties to even.
void pack(const float* values, std::size_t size, float low, float inverse, std::uint8_t* to) {
    const auto number = [&](std::size_t d) {
        const Vec rounder = splat(12582912.0f); // 1.5 * 2^23: rounds to an integer in the low bits
        const std::size_t count = size / 2 - d % (size / 2);
        const Vec x = (load_some(values + d, count < lanes ? count : lanes) - low) * inverse;
        return (IVec)(x + rounder) - (IVec)rounder;
    };
    for (std::size_t d = 0; d < size / 2; d += lanes) {
        const IVec both = (number(d) & 15) | (number(d + size / 2) & 15) << 4;
        std::uint8_t bytes[lanes];
        store_low_bytes(bytes, both);
        __builtin_memcpy(to + d, bytes, size / 2 - d < lanes ? size / 2 - d : lanes);
    }
}

void summarise(const CacheView& cache, std::size_t block, std::size_t head, std::size_t begin,
               std::size_t tokens, std::uint8_t* summary) {
    float mean[1024]; // of the largest head
    with_rows(cache, cache.block(block, head), [&](const auto& rows) {
        for (std::size_t part = begin / part_tokens; part < summary_parts; part++) {
            std::uint8_t* scale = summary + part * sizeof(float);
            std::uint8_t* low = scale + summary_parts * sizeof(float);
            std::uint8_t* numbers = summary + 2 * summary_parts * sizeof(float) + part * cache.size / 2;
            const std::size_t count = tokens_of_part(tokens, part);
            if (count == 0) {
                store_as<float>(scale, 0.0f);
                store_as<float>(low, 0.0f);
                __builtin_memset(numbers, 0, cache.size / 2);
                continue;
            }
            const Range range = mean_key(rows, cache.size, part * part_tokens, count, mean);
            const float step = (range.high - range.low) / largest;
            store_as<float>(scale, step + range.poison);
            store_as<float>(low, range.low);
            pack(mean, cache.size, range.low, step >= 1e-37f ? 1.0f / step : 0.0f, numbers);
        }
    });
}

} // namespace

const SummaryKernels summary_kernels = {summarise};

} // namespace ovspec::OVSPEC_ISA
