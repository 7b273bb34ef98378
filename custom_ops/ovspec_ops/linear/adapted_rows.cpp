#include "linear/adapted_rows.hpp"

#include <algorithm>
#include <cstring>

#include "common/fail.hpp"

namespace ovspec {
namespace {

// Rows of a span: enough to read A less often, few enough for all threads to have some.
constexpr std::size_t span_rows = 8;

std::uint64_t address_of(const PassAdapters& adapters, std::size_t row) {
    std::uint64_t address;
    std::memcpy(&address, adapters.tables + row * sizeof(address), sizeof(address));
    return address;
}

} // namespace

void AdaptedRows::find(const PassAdapters& adapters, std::size_t rows, std::size_t outputs) {
    ranks_ = 0;
    groups_.clear();
    products_.clear();
    spans_.clear();
    for (std::size_t row = 0, next; row < rows; row = next) {
        const std::uint64_t address = address_of(adapters, row);
        for (next = row + 1; next < rows && address_of(adapters, next) == address;)
            next++;
        if (address != 0)
            add(address, row, next - row, adapters, outputs);
    }
    values_ = memory_.reserve(ranks_);
}

void AdaptedRows::add(std::uint64_t address, std::size_t row, std::size_t rows, const PassAdapters& adapters,
                      std::size_t outputs) {
    const AdapterTable table(address);
    Group group{row, rows, products_.size(), 0, ranks_};
    for (std::size_t output = 0; output < outputs; output++) {
        if (adapters.layers[output] < 0)
            continue;
        const auto layer = static_cast<std::size_t>(adapters.layers[output]);
        if (layer >= table.layers())
            fail("Linear", "adapters (input 2) hold ", table.layers(), " layers for row ", row,
                 ", not the number ", layer, " that adapter_layers names");
        for (std::size_t index = table.begin(layer); index < table.begin(layer + 1); index++) {
            products_.push_back({table.product(index), output, group.ranks});
            group.ranks += products_.back().low_rank.rank;
        }
    }
    if (group.ranks == 0)
        return;
    for (std::size_t first = 0; first < rows; first += span_rows)
        for (std::size_t product = group.products; product < products_.size(); product++)
            spans_.push_back({groups_.size(), product, row + first, std::min(span_rows, rows - first)});
    ranks_ += rows * group.ranks;
    groups_.push_back(group);
}

} // namespace ovspec
