#include "linear/adapted_rows.hpp"

#include <cstring>

#include "common/fail.hpp"

namespace ovspec {

void AdaptedRows::find(const PassAdapters& adapters, std::size_t rows, std::size_t outputs) {
    outputs_ = outputs;
    ranks_ = 0;
    products_.clear();
    begins_.clear();
    for (std::size_t row = 0; row < rows; row++) {
        std::uint64_t address;
        std::memcpy(&address, adapters.tables + row * sizeof(address), sizeof(address));
        for (std::size_t output = 0; output < outputs; output++) {
            begins_.push_back(products_.size());
            if (address == 0 || adapters.layers[output] < 0)
                continue;
            const AdapterTable table(address);
            const auto layer = static_cast<std::size_t>(adapters.layers[output]);
            if (layer >= table.layers())
                fail("Linear", "adapters (input 2) hold ", table.layers(), " layers for row ", row,
                     ", not the number ", layer, " that adapter_layers names");
            for (std::size_t index = table.begin(layer); index < table.begin(layer + 1); index++) {
                products_.push_back({table.product(index), row, ranks_});
                ranks_ += products_.back().low_rank.rank;
            }
        }
    }
    begins_.push_back(products_.size());
    values_ = memory_.reserve(ranks_);
}

} // namespace ovspec
