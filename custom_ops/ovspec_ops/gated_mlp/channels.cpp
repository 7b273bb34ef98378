#include "gated_mlp/channels.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace ovspec {

void ChannelSet::collect(std::size_t channels) {
    channels_.resize(channels + 1); // every channel is written, whether it counts or not: no branch to guess
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

// A histogram of exponents and leading bits first: what is left to sort is what falls into one of its bins.
void ChannelSet::keep_highest(const float* scores, std::size_t channels, std::size_t count) {
    constexpr unsigned shift = 19; // scores have no sign: 4,096 bins
    keys_.resize(channels);
    bins_.assign(std::size_t{1} << (31 - shift), 0);
    for (std::size_t c = 0; c < channels; c++) {
        std::uint32_t key;
        std::memcpy(&key, scores + c, sizeof(key));
        keys_[c] = scores[c] != scores[c] ? 0x7fffffffu : key; // a NaN is kept: it is to reach the output
        bins_[keys_[c] >> shift]++;
    }
    std::size_t bin = bins_.size(), above = 0; // channels in higher bins
    while (bin > 0 && above + bins_[bin - 1] <= count)
        above += bins_[--bin];
    order_.clear(); // the one bin of which a part is kept
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
