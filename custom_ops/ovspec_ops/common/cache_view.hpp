// A paged key or value cache as the CPU plugin lays it out, without any OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/inline.hpp"

namespace ovspec {

constexpr std::size_t block_size = 32; // tokens per cache block in the CPU plugin

enum class CacheFormat {
    f32,
    f16,
    bf16,
    u8_token,   // a row: scale f32, zero point f32, `size` bytes; x = (u - zero point) * scale
    u8_channel, // a block: `size` f32 scales, `size` f32 zero points, 32 rows of `size` bytes
};

// Blocks are `[blocks, heads, rows of the block]`; `block_bytes` is the size of one head's rows of one block.
struct CacheView {
    const std::uint8_t* data = nullptr;
    CacheFormat format = CacheFormat::f32;
    std::size_t blocks = 0;
    std::size_t heads = 0;
    std::size_t size = 0;        // values per token and head
    std::size_t row_bytes = 0;   // distance of two tokens
    std::size_t block_bytes = 0; // distance of two heads

    OVSPEC_INLINE_MEMBER const std::uint8_t* block(std::size_t id, std::size_t head) const {
        return data + (id * heads + head) * block_bytes;
    }
};

} // namespace ovspec
