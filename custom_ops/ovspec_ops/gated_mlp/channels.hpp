// Which channels a pass keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gated_mlp/kernel.hpp"

namespace ovspec {

// Vectors keep their capacity from call to call.
class ChannelSet {
public:
    void keep_all(std::size_t channels);
    void keep_highest(const float* scores, std::size_t channels, std::size_t count);

    // Fills the groups of `down` up to multiples of run_step; `group_size` channels belong to one.
    void arrange(std::size_t group_size);

    // Channels kept.
    std::size_t count() const { return count_; }
    ChannelView view() const { return {entries_.data(), entries_.size(), runs_.data(), runs_.size()}; }
    // Entries of the view that only fill a run up: their values must be zero.
    const std::vector<std::size_t>& padding() const { return padding_; }

private:
    void collect(std::size_t channels);

    std::vector<char> kept_; // per channel
    std::vector<std::uint32_t> channels_, entries_;
    std::vector<ChannelRun> runs_;
    std::vector<std::size_t> padding_;
    std::vector<std::uint32_t> order_, keys_;
    std::vector<std::size_t> bins_;
    std::size_t count_ = 0;
};

} // namespace ovspec
