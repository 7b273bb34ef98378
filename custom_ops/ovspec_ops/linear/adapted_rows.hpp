// The products of low rank beside one call of Linear.
#pragma once

#include <cstddef>
#include <vector>

#include "common/parallel.hpp"
#include "linear/adapters.hpp"

namespace ovspec {

class AdaptedRows {
public:
    // One product of a row, and where its A x stands in values().
    struct Product {
        LowRank low_rank;
        std::size_t row, first;
    };

    // Finds the products of `rows` rows and `outputs` outputs, in this order. Throws where a table is of
    // fewer layers than Linear asks for.
    void find(const PassAdapters& adapters, std::size_t rows, std::size_t outputs);

    bool empty() const { return products_.empty(); }
    // The products of an output of a row: the first, and the one behind the last.
    std::size_t begin(std::size_t row, std::size_t output) const { return begins_[row * outputs_ + output]; }
    std::size_t end(std::size_t row, std::size_t output) const {
        return begins_[row * outputs_ + output + 1];
    }
    const Product& product(std::size_t index) const { return products_[index]; }
    std::size_t ranks() const { return ranks_; } // of all of them together
    float* values() const { return values_; }

private:
    std::size_t outputs_ = 0, ranks_ = 0;
    std::vector<Product> products_;
    std::vector<std::size_t> begins_;
    FloatBuffer memory_;
    float* values_ = nullptr;
};

} // namespace ovspec
