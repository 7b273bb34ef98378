#include "gated_mlp/channels.hpp"

#include <algorithm>
#include <numeric>

namespace ovspec {

void ChannelSet::collect(std::size_t channels) {
    channels_.clear();
    for (std::size_t c = 0; c < channels; c++)
        if (kept_[c])
            channels_.push_back(static_cast<std::uint32_t>(c));
}

void ChannelSet::keep_all(std::size_t channels) {
    channels_.resize(channels);
    std::iota(channels_.begin(), channels_.end(), std::uint32_t{0});
}

void ChannelSet::keep_above(const float* scores, std::size_t channels, float threshold) {
    channels_.clear();
    for (std::size_t c = 0; c < channels; c++)
        if (!(scores[c] < threshold)) // a NaN is kept: it is to reach the output
            channels_.push_back(static_cast<std::uint32_t>(c));
}

void ChannelSet::keep_highest(const float* scores, std::size_t channels, std::size_t count) {
    order_.resize(channels);
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
    const auto better = [&](std::uint32_t a, std::uint32_t b) {
        const bool nan_a = scores[a] != scores[a], nan_b = scores[b] != scores[b];
        if (nan_a != nan_b)
            return nan_a; // they are to reach the output
        if (nan_a || scores[a] == scores[b])
            return a < b;
        return scores[a] > scores[b];
    };
    const auto middle = order_.begin() + static_cast<std::ptrdiff_t>(count);
    if (middle != order_.end())
        std::nth_element(order_.begin(), middle, order_.end(), better);
    kept_.assign(channels, 0);
    std::for_each(order_.begin(), middle, [&](std::uint32_t c) { kept_[c] = 1; });
    collect(channels);
}

void ChannelSet::keep_first(const std::int32_t* order, std::size_t channels, std::size_t count) {
    kept_.assign(channels, 0);
    for (std::size_t i = 0; i < count; i++)
        kept_[static_cast<std::size_t>(order[i])] = 1;
    collect(channels);
}

void ChannelSet::arrange(std::size_t group_size) {
    count_ = channels_.size();
    entries_.clear();
    runs_.clear();
    padding_.clear();
    for (std::size_t i = 0; i < count_;) {
        const std::size_t group = channels_[i] / group_size, begin = entries_.size();
        for (; i < count_ && channels_[i] / group_size == group; i++)
            entries_.push_back(channels_[i]);
        while (entries_.size() % run_step != 0) {
            padding_.push_back(entries_.size());
            entries_.push_back(entries_.back());
        }
        runs_.push_back({group, begin, entries_.size()});
    }
}

} // namespace ovspec
