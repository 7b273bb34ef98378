// What is kept of the keys of one block and KV head. No OpenVINO type.
#pragma once

#include "common/cache_view.hpp"

namespace ovspec {

// The means of so many tokens, one behind the other: keys of neighbours look alike, as RoPE turns them alike.
constexpr std::size_t part_tokens = 8, summary_parts = block_size / part_tokens;

// A summary is `summary_parts` scales and as many zero points, f32, and then `size` numbers of 4 bits for
// each part: byte d of a part holds channel d in its lower half and channel d + size / 2 in its upper one.
// A mean is zero point + scale * number.
OVSPEC_INLINE constexpr std::size_t summary_bytes(std::size_t size) {
    return summary_parts * (2 * sizeof(float) + size / 2);
}

// Tokens of part `part` among the first `tokens` of its block.
OVSPEC_INLINE constexpr std::size_t tokens_of_part(std::size_t tokens, std::size_t part) {
    const std::size_t begin = part * part_tokens;
    return tokens <= begin ? 0 : tokens - begin < part_tokens ? tokens - begin : part_tokens;
}

} // namespace ovspec
