// Which blocks of a sequence one KV head keeps. No OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ovspec {

// Block 0 and the blocks from `first_mandatory` on are kept; of the others the highest scores, lower numbers
// first among equals, until `budget` blocks are kept. Writes ascending block numbers, returns how many.
// `others` is scratch. A score that is NaN ranks last.
std::size_t select_blocks(const float* scores, std::size_t blocks, std::size_t first_mandatory,
                          std::size_t budget, std::vector<std::int32_t>& others, std::int32_t* selected);

} // namespace ovspec
