// Scales and zero points of 4-bit weights by lane of a vector (row_layout.hpp).
#pragma once

#include "common/simd.hpp"
#include "gated_mlp/kernel.hpp"
#include "gated_mlp/row_layout.hpp"

namespace ovspec::OVSPEC_ISA::lane_scales {

// Scales and zero points of a chunk of one channel, every lane its group's.
struct LaneScales {
    float scale[16];
    float zero_point[16];
};

template <std::size_t groups>
OVSPEC_INLINE void spread(const std::uint8_t* scales, const std::uint8_t* zero_points, LaneScales& to) {
    constexpr std::size_t lanes_each = 16 / groups;
    for (std::size_t first = 0; first < groups; first += lanes) {
        constexpr std::size_t some = groups < lanes ? groups : lanes;
        const Vec scale = from_f16(load_first<HalfVec, some>((const std::uint16_t*)scales + first));
        const Vec zero_point = to_float(load_first<ByteVec, some>(zero_points + first));
        for (std::size_t p = 0; p < 16 / lanes * some / groups; p++) {
            IVec index;
#pragma GCC unroll 16
            for (std::size_t i = 0; i < lanes; i++)
                index[i] = (std::int32_t)((p * lanes + i) / lanes_each);
            float* at = to.scale + first * lanes_each + p * lanes;
            store(at, permuted(scale, index));
            store(to.zero_point + (at - to.scale), permuted(zero_point, index));
        }
    }
}

OVSPEC_INLINE void read(const ChannelMatrix& m, std::size_t channel, const RowChunk& chunk, LaneScales& to) {
    const std::size_t at = channel * m.groups + chunk.first;
    with_power<1, 16>(chunk.groups, [&](auto groups) __attribute__((always_inline)) {
        spread<groups>(m.scales + 2 * at, m.zero_points + at, to);
    });
}

} // namespace ovspec::OVSPEC_ISA::lane_scales
