// Decides which experts, out of those that the router chose, each row keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ovspec {

// A router's choice for the rows of a pass, `[rows, top_k]`. Dropped pairs get the index -1 and weight 0. The
// weights that a row keeps are scaled, so that their sum does not change. Buffers keep their capacity.
class RoutingBudget {
public:
    RoutingBudget(std::int32_t* indices, float* weights, std::size_t top_k)
        : indices_(indices), weights_(weights), top_k_(top_k) {}

    struct Buffers {
        std::vector<double> mass;
        std::vector<char> kept;
        std::vector<std::size_t> order;
    };

    // Keeps every row's first expert, then those with the largest weight summed over the rows, until `budget`
    // are kept. `limited[row]`: whether the row takes part.
    void apply(std::size_t budget, const std::vector<char>& limited, std::size_t experts, Buffers& buffers);

private:
    void rank(std::size_t row, Buffers& buffers) const;
    template <class Keep> void keep(std::size_t row, const Keep& kept);

    std::int32_t* indices_;
    float* weights_;
    std::size_t top_k_;
};

} // namespace ovspec
