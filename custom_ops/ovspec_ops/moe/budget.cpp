#include "moe/budget.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace ovspec {

// Places of a row by weight, the earlier first among equals; NaN after all numbers, those without an expert
// last.
void RoutingBudget::rank(std::size_t row, Buffers& buffers) const {
    const std::int32_t* indices = indices_ + row * top_k_;
    const float* weights = weights_ + row * top_k_;
    const auto key = [&](std::size_t place) {
        const int order = indices[place] < 0 ? 2 : std::isnan(weights[place]) ? 1 : 0;
        return std::make_tuple(order, order == 0 ? -weights[place] : 0.0f, place);
    };
    buffers.order.resize(top_k_);
    std::iota(buffers.order.begin(), buffers.order.end(), std::size_t{0});
    std::sort(buffers.order.begin(), buffers.order.end(),
              [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
}

template <class Keep> void RoutingBudget::keep(std::size_t row, const Keep& kept) {
    std::int32_t* indices = indices_ + row * top_k_;
    float* weights = weights_ + row * top_k_;
    double before = 0.0, after = 0.0;
    for (std::size_t place = 0; place < top_k_; place++) {
        if (indices[place] < 0)
            continue;
        const bool stays = kept(place);
        if (stays || !std::isnan(weights[place])) // a NaN goes with its expert
            before += weights[place];
        if (stays)
            after += weights[place];
    }
    const float factor = after != 0.0 && after != before ? static_cast<float>(before / after) : 1.0f;
    for (std::size_t place = 0; place < top_k_; place++) {
        if (indices[place] >= 0 && kept(place)) {
            weights[place] *= factor;
            continue;
        }
        indices[place] = -1;
        weights[place] = 0.0f;
    }
}

void RoutingBudget::apply(std::size_t budget, const std::vector<char>& limited, std::size_t experts,
                          Buffers& buffers) {
    if (top_k_ == 0)
        return;
    buffers.mass.assign(experts, 0.0);
    buffers.kept.assign(experts, 0);
    std::size_t kept = 0;
    for (std::size_t row = 0; row < limited.size(); row++) {
        if (!limited[row])
            continue;
        for (std::size_t i = row * top_k_; i < (row + 1) * top_k_; i++)
            if (indices_[i] >= 0 && !std::isnan(weights_[i]))
                buffers.mass[static_cast<std::size_t>(indices_[i])] += weights_[i];
        rank(row, buffers);
        const std::int32_t first = indices_[row * top_k_ + buffers.order[0]];
        if (first >= 0 && !buffers.kept[static_cast<std::size_t>(first)]) {
            buffers.kept[static_cast<std::size_t>(first)] = 1;
            kept++;
        }
    }
    for (double& mass : buffers.mass)
        mass = std::isnan(mass) ? 0.0 : mass; // infinities of both signs
    buffers.order.resize(experts);
    std::iota(buffers.order.begin(), buffers.order.end(), std::size_t{0});
    std::sort(buffers.order.begin(), buffers.order.end(), [&](std::size_t a, std::size_t b) {
        return buffers.mass[a] != buffers.mass[b] ? buffers.mass[a] > buffers.mass[b] : a < b;
    });
    for (const std::size_t expert : buffers.order) {
        if (kept >= budget)
            break;
        if (!buffers.kept[expert]) {
            buffers.kept[expert] = 1;
            kept++;
        }
    }
    for (std::size_t row = 0; row < limited.size(); row++)
        if (limited[row])
            keep(row, [&](std::size_t place) {
                return buffers.kept[static_cast<std::size_t>(indices_[row * top_k_ + place])] != 0;
            });
}

} // namespace ovspec
