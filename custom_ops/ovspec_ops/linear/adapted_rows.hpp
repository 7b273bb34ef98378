// The products of low rank beside one call of Linear.
#pragma once

#include <cstddef>
#include <vector>

#include "common/parallel.hpp"
#include "linear/adapters.hpp"

namespace ovspec {

// Rows that follow each other and have the same adapters are computed together.
class AdaptedRows {
public:
    struct Group {
        std::size_t row, rows;
        std::size_t products; // the first of its products
        std::size_t ranks;    // of all its products: values of one row
        std::size_t values;   // where those of its first row begin
    };
    struct Product {
        LowRank low_rank;
        std::size_t output, first; // first: of a row's values, its A x
    };
    // A x of some rows of a group, for one product.
    struct Span {
        std::size_t group, product, row, rows;
    };

    // Finds the products of `rows` rows and `outputs` outputs. Throws where a table is of fewer layers than
    // Linear asks for.
    void find(const PassAdapters& adapters, std::size_t rows, std::size_t outputs);

    const std::vector<Group>& groups() const { return groups_; }
    // Of a group: products in the order of their outputs, up to those of the next group.
    std::size_t end(std::size_t group) const {
        return group + 1 < groups_.size() ? groups_[group + 1].products : products_.size();
    }
    const Product& product(std::size_t index) const { return products_[index]; }
    const std::vector<Span>& spans() const { return spans_; }
    std::size_t ranks() const { return ranks_; } // of all rows together
    float* values(std::size_t group, std::size_t product, std::size_t row) const {
        const Group& of = groups_[group];
        return values_ + of.values + (row - of.row) * of.ranks + products_[product].first;
    }

private:
    void add(std::uint64_t address, std::size_t row, std::size_t rows, const PassAdapters& adapters,
             std::size_t outputs);

    std::size_t ranks_ = 0;
    std::vector<Group> groups_;
    std::vector<Product> products_;
    std::vector<Span> spans_;
    FloatBuffer memory_;
    float* values_ = nullptr;
};

} // namespace ovspec
