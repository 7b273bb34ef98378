#include "decoder_layers/drawn_token.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/fail.hpp"

namespace ovspec {
namespace {

// Two tokens of a row are compared by logit, equal ones by id. The tokens that may be drawn are the first
// ones of this order, as top_k, min_p and top_p all keep the most probable.
struct Place {
    float logit;
    std::int32_t id;

    bool before(const Place& other) const {
        return logit > other.logit || (logit == other.logit && id < other.id);
    }
};

// A row of logits, and what is drawn from it.
struct Row {
    const float* logits;
    std::int32_t width;
    float peak, temperature;
    const StepKernels& kernels;

    Place at(std::int32_t id) const { return {logits[id], id}; }
    // Behind all tokens.
    Place end() const { return {-std::numeric_limits<float>::infinity(), width}; }
    // As the sampling in Python has it: it divides, and in f32.
    float scaled(float logit) const { return (logit - peak) / temperature; }
    double weight(float logit) const { return std::exp(static_cast<double>(scaled(logit))); }

    // The token behind the `count` first ones, of which there are more.
    Place behind(std::int32_t count) const {
        const auto before = [](const Place& a, const Place& b) { return a.before(b); };
        std::vector<Place> first; // a heap, the last of them on top
        for (std::int32_t id = 0; id < width; id++) {
            if (id <= count) {
                first.push_back(at(id));
                std::push_heap(first.begin(), first.end(), before);
            } else if (at(id).before(first.front())) {
                std::pop_heap(first.begin(), first.end(), before);
                first.back() = at(id);
                std::push_heap(first.begin(), first.end(), before);
            }
        }
        return first.front();
    }

    // Sum of the weights of the tokens before one.
    double mass(const Place& before) const {
        const auto all = static_cast<std::size_t>(width);
        const auto equal = static_cast<double>(std::count(logits, logits + before.id, before.logit));
        return kernels.mass_above(logits, all, before.logit, peak, temperature) +
               equal * weight(before.logit);
    }
};

constexpr std::uint64_t golden = 0x9E3779B97F4A7C15;

// The finaliser of SplitMix64.
std::uint64_t mixed(std::uint64_t bits) {
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    return bits ^ bits >> 31;
}

// -log E, where E = -log u, and u is the middle of one of 2^53 equal steps.
double noise(std::uint64_t bits) {
    const double u = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
    return -std::log(-std::log(u));
}

// At least `noise`: E >= 1 - u, which begins with as many zeros as u has ones.
double most_noise(std::uint64_t bits) {
    const int ones = ~bits ? __builtin_clzll(~bits) : 64;
    return 0.6931472 * (ones + 1);
}

// The token before `end` with the largest log weight + noise. `likely` is one of them.
std::int32_t winner(const Row& row, std::int32_t likely, const Place& end, std::uint64_t key) {
    const auto bits_of = [&](std::int32_t id) {
        return mixed((static_cast<std::uint64_t>(id) + 1) * golden + key);
    };
    std::int32_t token = likely;
    double best = row.scaled(row.logits[likely]) + noise(bits_of(likely));
    for (std::int32_t id = 0; id < row.width; id++) {
        if (!row.at(id).before(end))
            continue;
        const double scaled = row.scaled(row.logits[id]);
        const std::uint64_t bits = bits_of(id);
        if (scaled + most_noise(bits) < best)
            continue;
        const double score = scaled + noise(bits);
        if (score > best || (score == best && id < token)) {
            best = score;
            token = id;
        }
    }
    return token;
}

} // namespace

void Sampling::check() const {
    const bool divides = temperature >= 0.0f && std::isfinite(temperature);
    if (!divides || top_k < 0 || !(top_p > 0.0f) || !(min_p < 1.0f))
        fail("DecoderLayers", "a draft is sampled with temperature ", temperature, ", top_k ", top_k,
             ", top_p ", top_p, " and min_p ", min_p,
             ", expected 0 or more, 0 or more, above 0, and below 1");
}

std::int32_t drawn_token(const float* logits, std::size_t width, const Sampling& sampling, std::int64_t run,
                         const StepKernels& kernels) {
    const std::int32_t likely = kernels.largest(logits, width);
    if (likely < 0 || sampling.temperature == 0.0f)
        return likely;
    const Row row{logits, static_cast<std::int32_t>(width), logits[likely], sampling.temperature, kernels};
    const std::uint64_t key =
        mixed(sampling.key + static_cast<std::uint64_t>(sampling.position + run + 1) * golden);
    Place end = sampling.top_k > 0 && sampling.top_k < row.width ? row.behind(sampling.top_k) : row.end();
    const double most = sampling.top_p < 1.0f ? sampling.top_p * row.mass(end) : 0.0;
    for (;;) {
        // Whether min_p and top_p keep a token is asked when it wins, which is cheaper than to ask for all.
        // Where they do not, they keep none behind it either: the next draw is among those before it.
        const Place found = row.at(winner(row, likely, end, key));
        const bool kept = static_cast<float>(row.weight(found.logit)) >= sampling.min_p;
        if (found.id == likely || (kept && (sampling.top_p >= 1.0f || row.mass(found) <= most)))
            return found.id;
        end = found;
    }
}

} // namespace ovspec
