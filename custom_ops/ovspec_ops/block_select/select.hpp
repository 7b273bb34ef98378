// Which blocks of a sequence one KV head keeps. No OpenVINO type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ovspec {

// What is known of a sequence before its blocks are scored: block 0 .. sinks - 1 and the blocks from `local`
// on are kept whatever they score, those between are candidates.
struct Ends {
    std::size_t blocks;
    std::size_t sinks;
    std::size_t local;

    // `past` tokens before the pass; sink_blocks and local_blocks are at least 1, and the local window of so
    // many blocks ends with the block of position past - 1. The blocks of the pass' own rows come after it.
    static Ends of(std::size_t blocks, std::size_t past, std::size_t sink_blocks, std::size_t local_blocks);
};

// What is known of the blocks that lie before a pass. Scores are shares of attention, or, where they are
// `linear`, mean products: softmax over the blocks, times their tokens, estimates the shares from these.
struct Scores {
    const float* values; // `[count]`
    std::size_t count;
    bool linear;
    std::size_t past; // tokens in these blocks; all but the last are full
};

// Where a selection stops: `budget` blocks are kept, or those kept hold the share `coverage` of the attention
// to the scored blocks. A coverage of 1 never stops it.
struct Limits {
    std::size_t budget;
    float coverage;
};

// Scratch of a selection: candidates as ranks, the better the smaller, in the order of blocks and in others;
// masses of all blocks.
struct Candidates {
    std::vector<std::uint64_t> ranks, best, others;
    std::vector<double> masses;
};

// Of the candidates the highest scores, lower block numbers first among equals, until a limit is reached.
// Writes ascending block numbers, those at the ends included, and returns how many. A score that is NaN ranks
// last and has no mass.
std::size_t select_blocks(const Scores& scores, const Ends& ends, const Limits& limits,
                          Candidates& candidates, std::int32_t* selected);

} // namespace ovspec
