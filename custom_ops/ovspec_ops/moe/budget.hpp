// Which of the experts that its router chose a row keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ovspec {

// A router's choice for the rows of a pass, `[rows, top_k]`; dropped pairs get the index -1 and weight 0,
// what a row keeps is scaled so that its sum stays. Buffers keep their capacity from call to call.
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
