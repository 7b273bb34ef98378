#include "cache_write/kernel.hpp"

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {
namespace {

constexpr float most = 255.0f;
// Of a row whose values are all alike, or so small that nothing can be divided by their scale.
constexpr float least_scale = 0.0001f, smallest = 0x1p-126f;

// The values from `d` on: a whole vector, which at the end of a row begins earlier. A row of fewer values is
// filled with its first.
OVSPEC_INLINE Vec values_at(const float* row, std::size_t d, std::size_t size) {
    if (size < lanes) {
        Vec x = splat(row[0]);
        __builtin_memcpy(&x, row, size * sizeof(float));
        return x;
    }
    return load(row + (d + lanes <= size ? d : size - lanes));
}

OVSPEC_INLINE void put_bytes(std::uint8_t* bytes, std::size_t d, std::size_t size, IVec numbers) {
    if (size < lanes) {
        std::uint8_t all[lanes];
        store_low_bytes(all, numbers);
        __builtin_memcpy(bytes, all, size);
        return;
    }
    store_low_bytes(bytes + (d + lanes <= size ? d : size - lanes), numbers);
}

// scale f32, zero point f32, `size` bytes. The order of operations is the stock node's: its bytes are the
// same.
OVSPEC_INLINE void round_row(const float* row, std::size_t size, std::uint8_t* to) {
    Vec low = values_at(row, 0, size), high = low;
    IVec wrong = {};
    for (std::size_t d = 0; d < size; d += lanes) {
        const Vec x = values_at(row, d, size);
        low = x < low ? x : low;
        high = x > high ? x : high;
        wrong |= x != x;
    }
    const float least = -max_lane(-low), range = (max_lane(high) - least) / most;
    float scale = range < smallest ? least_scale : range, zero_point = -least / scale;
    bool number = range < __builtin_inff() && __builtin_fabsf(zero_point) < __builtin_inff();
    for (std::size_t i = 0; i < lanes; i++)
        number = number && wrong[i] == 0;
    if (!number) { // no value of the row is one
        scale = __builtin_nanf("");
        zero_point = 0.0f;
    }
    store_as(to, scale);
    store_as(to + sizeof(float), zero_point);
    std::uint8_t* bytes = to + 2 * sizeof(float);
    const Vec factor = splat(number ? 1.0f / scale : 0.0f), offset = splat(zero_point);
    constexpr float rounds = 12582912.0f; // 1.5 * 2^23: to the nearest integer, which is in the low bits then
    for (std::size_t d = 0; d < size; d += lanes) {
        Vec x = number ? fused(values_at(row, d, size), factor, offset) : Vec{};
        x = x < 0.0f ? Vec{} : x;
        x = x > most ? splat(most) : x;
        put_bytes(bytes, d, size, (IVec)(x + rounds) - (IVec)splat(rounds));
    }
}

void write_row(const CacheView& cache, std::uint8_t* data, std::size_t slot, const float* heads) {
    const std::size_t block = slot / block_size, token = slot % block_size;
    for (std::size_t h = 0; h < cache.heads; h++) {
        const float* row = heads + h * cache.size;
        std::uint8_t* to = data + (block * cache.heads + h) * cache.block_bytes + token * cache.row_bytes;
        if (cache.format == CacheFormat::u8_token)
            round_row(row, cache.size, to);
        else
            __builtin_memcpy(to, row, cache.size * sizeof(float));
    }
}

} // namespace

const WriteKernels write_kernels = {write_row};

} // namespace ovspec::OVSPEC_ISA
