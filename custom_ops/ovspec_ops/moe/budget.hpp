// Which of the experts that its router chose a row keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ovspec {

enum class BudgetRule {
    mass,  // the `budget` experts with the largest summed weight over all rows
    share, // per row: drop the lowest, at most `budget`, while their share of the row is below `bound`
    top_k, // per row: the `budget` highest
};

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

    // `limited[row]`: whether the rule holds for the row.
    void apply(BudgetRule rule, std::size_t budget, float bound, const std::vector<char>& limited,
               std::size_t experts, Buffers& buffers);

private:
    void keep_mass(std::size_t budget, const std::vector<char>& limited, std::size_t experts,
                   Buffers& buffers);
    void keep_ranked(std::size_t row, std::size_t count, Buffers& buffers);
    std::size_t ranked_by_share(std::size_t row, std::size_t budget, float bound, Buffers& buffers) const;
    void rank(std::size_t row, Buffers& buffers) const;
    template <class Keep> void keep(std::size_t row, const Keep& kept);

    std::int32_t* indices_;
    float* weights_;
    std::size_t top_k_;
};

} // namespace ovspec
