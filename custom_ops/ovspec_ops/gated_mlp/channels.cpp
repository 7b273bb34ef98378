#include "gated_mlp/channels.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace ovspec {

void ChannelSet::collect(std::size_t channels) {
    channels_.resize(channels + 1); // written without a branch, so one more than are kept
    std::size_t count = 0;
    for (std::size_t c = 0; c < channels; c++) {
        channels_[count] = static_cast<std::uint32_t>(c);
        count += kept_[c] != 0;
    }
    channels_.resize(count);
}

void ChannelSet::keep_all(std::size_t channels) {
    channels_.resize(channels);
    std::iota(channels_.begin(), channels_.end(), std::uint32_t{0});
}

// A histogram of exponents and leading bits finds the bin in which the limit falls; only that bin is sorted.
void ChannelSet::keep_highest(const float* scores, std::size_t channels, std::size_t count) {
    constexpr unsigned shift = 19; // scores have no sign: 4,096 bins
    keys_.resize(channels);
    bins_.assign(std::size_t{1} << (31 - shift), 0);
    for (std::size_t c = 0; c < channels; c++) {
        std::memcpy(&keys_[c], scores + c, sizeof(float)); // no score is NaN
        bins_[keys_[c] >> shift]++;
    }
    std::size_t bin = bins_.size(), above = 0; // channels in higher bins
    while (bin > 0 && above + bins_[bin - 1] <= count)
        above += bins_[--bin];
    order_.clear(); // channels of the bin that is kept in part
    kept_.resize(channels);
    for (std::size_t c = 0; c < channels; c++) {
        kept_[c] = keys_[c] >> shift >= bin;
        if (bin > 0 && keys_[c] >> shift == bin - 1)
            order_.push_back(static_cast<std::uint32_t>(c));
    }
    const auto middle = order_.begin() + static_cast<std::ptrdiff_t>(count - above);
    if (middle != order_.end())
        std::nth_element(order_.begin(), middle, order_.end(), [&](std::uint32_t a, std::uint32_t b) {
            return keys_[a] != keys_[b] ? keys_[a] > keys_[b] : a < b;
        });
    std::for_each(order_.begin(), middle, [&](std::uint32_t c) { kept_[c] = 1; });
    collect(channels);
}

void ChannelSet::arrange(std::size_t group_size) {
    count_ = channels_.size();
    entries_.clear();
    runs_.clear();
    padding_.clear();
    for (std::size_t i = 0; i < count_;) {
        const std::size_t group = channels_[i] / group_size, begin = entries_.size();
        const std::size_t next = (group + 1) * group_size, from = i;
        while (i < count_ && channels_[i] < next)
            i++;
        entries_.insert(entries_.end(), channels_.begin() + static_cast<std::ptrdiff_t>(from),
                        channels_.begin() + static_cast<std::ptrdiff_t>(i));
        while (entries_.size() % run_step != 0) {
            padding_.push_back(entries_.size());
            entries_.push_back(entries_.back());
        }
        runs_.push_back({group, begin, entries_.size()});
    }
}

} // namespace ovspec
