// Cache lines of the blocks that come next, fetched while others are worked on. Part of the kernels: see
// common/simd.hpp.
#pragma once

#include "common/simd.hpp"

namespace ovspec::OVSPEC_ISA {

// Prefetches places in the order of their use, spread evenly over the ticks of the work at hand: about a
// dozen lines can be on their way, more would wait, and fewer leave the memory idle. The integer path fetches
// into the second-level cache, as the first one is full. The float path fetches into the first: from the
// second, a row behind 16,384 tokens of f32 took 1.2 times as long. The first access to a page waits for its
// address; several of these waits run together, so where many blocks are fetched their pages are looked up
// first.
class Fetch {
public:
    static constexpr std::size_t most_places = 4;
    static constexpr int first_cache = 3, second_cache = 2; // as __builtin_prefetch counts them

    explicit Fetch(std::size_t ticks) : ticks_(ticks) {}

    void add(const std::uint8_t* place, std::size_t bytes) {
        begin_[count_] = place;
        end_[count_++] = place + bytes;
        total_ += bytes + line; // a step that ends a place is cut short
        step_ = (total_ + ticks_ - 1) / ticks_;
        at_ = begin_[0];
    }

    void look_up_pages() const {
        for (std::size_t p = 0; p < count_; p++) {
            for (const std::uint8_t* at = begin_[p]; at < end_[p]; at += page)
                __builtin_prefetch(at, 0, second_cache);
            __builtin_prefetch(end_[p] - 1, 0, second_cache);
        }
    }

    template <int locality = second_cache> OVSPEC_INLINE_MEMBER void tick() {
        for (std::size_t i = 0; i < step_; i += line)
            __builtin_prefetch(at_ + i, 0, locality);
        at_ += step_;
        if (at_ >= end_[place_]) {
            place_ += place_ + 1 < count_;
            at_ = begin_[place_];
        }
    }

private:
    static constexpr std::size_t line = 64, page = 4096; // bytes; pages are at least so large

    const std::uint8_t *begin_[most_places], *end_[most_places];
    std::size_t ticks_, count_ = 0, place_ = 0, total_ = 0, step_ = 0;
    const std::uint8_t* at_ = nullptr;
};

} // namespace ovspec::OVSPEC_ISA
