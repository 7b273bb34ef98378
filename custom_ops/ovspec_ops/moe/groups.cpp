#include "moe/groups.hpp"

#include <string>

#include "common/tensors.hpp"

namespace ovspec {

void ExpertGroups::group(const char* op, const std::int32_t* indices, const float* weights,
                         std::size_t first_row, std::size_t row_count, std::size_t top_k,
                         std::size_t expert_count) {
    const std::size_t first = first_row * top_k, last = first + row_count * top_k;
    next_.assign(expert_count, 0);
    for (std::size_t i = first; i < last; i++) {
        const std::int32_t expert = indices[i];
        if (expert < -1 || (expert >= 0 && static_cast<std::size_t>(expert) >= expert_count))
            fail(op, "indices[", i / top_k, ", ", i % top_k, "] is ", expert,
                 ", expected -1 (none) or an expert below ", expert_count);
        if (expert >= 0)
            next_[static_cast<std::size_t>(expert)]++;
    }
    experts.clear();
    begins.assign(1, 0);
    for (std::size_t expert = 0; expert < expert_count; expert++) {
        const std::size_t count = next_[expert];
        next_[expert] = begins.back();
        if (count == 0)
            continue;
        experts.push_back(expert);
        begins.push_back(begins.back() + count);
    }
    rows.resize(begins.back());
    shares.resize(begins.back());
    for (std::size_t i = first; i < last; i++) {
        if (indices[i] < 0)
            continue;
        const std::size_t pair = next_[static_cast<std::size_t>(indices[i])]++;
        rows[pair] = i / top_k;
        shares[pair] = weights[i];
    }
}

} // namespace ovspec
