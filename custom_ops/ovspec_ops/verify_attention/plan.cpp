#include "verify_attention/plan.hpp"

#include <algorithm>

namespace ovspec {
namespace {

constexpr std::size_t copy_rows = 16;

// Floats of queries and outputs that an item's heads may have together, so that they stay in a core's own
// cache.
constexpr std::size_t item_floats = std::size_t{1} << 15;

// Partial results of a wave, in floats (32 MB): a long chunk of a prompt would have gigabytes of them. One
// head of a group of rows is never divided; behind a long context a group has fewer rows, but for a tree.
constexpr std::size_t wave_floats = std::size_t{1} << 23;

// Items per thread that keep the threads' shares even.
constexpr std::size_t items_per_thread = 4;

// The list of one head: ascending logical blocks, the blocks of this pass' rows at its end.
void check_list(const Sequences& in, std::size_t s, std::size_t head, const std::int32_t* list,
                std::size_t count) {
    const std::size_t blocks = in.blocks(s), column = in.first_column(s);
    for (std::size_t i = 0; i < count; i++) {
        if (list[i] < 0 || static_cast<std::size_t>(list[i]) >= blocks)
            fail(in.op, "selected_blocks[", head, ", ", column + i, "] is ", list[i],
                 ", expected a logical block below the ", blocks, " of sequence ", s);
        if (i > 0 && list[i] <= list[i - 1])
            fail(in.op, "selected_blocks[", head, ", ", column + i, "] is ", list[i], " after ", list[i - 1],
                 ", expected ascending logical blocks");
    }
    const std::size_t first = in.past(s) / block_size;
    const std::size_t own = blocks - first;
    if (count < own || static_cast<std::size_t>(list[count - own]) != first)
        fail(in.op, "selected_blocks of KV head ", head, " lacks a block of sequence ", s,
             "'s own rows, expected blocks ", first, " to ", blocks - 1, " at the end of its list");
}

void check_lists(const VerifyCall& call, const Sequences& in, const Selection& selection, std::size_t s) {
    for (std::size_t h = 0; selection.counts && h < call.keys.heads; h++) {
        const std::int32_t count = selection.counts[h * in.count + s];
        if (count == -1)
            continue;
        if (count < 1 || static_cast<std::size_t>(count) > in.table_length(s))
            fail(in.op, "selected_counts[", h, ", ", s, "] is ", count, ", expected -1 (dense) or 1 to ",
                 in.table_length(s));
        check_list(in, s, h, selection.blocks + h * selection.columns + in.first_column(s),
                   static_cast<std::size_t>(count));
    }
}

// Whether the rows of a sequence are a tree and not a chain.
bool check_parents(const Sequences& in, Parents parents, std::size_t s) {
    const std::size_t first = in.first_row(s), rows = in.row_count(s);
    bool tree = false;
    for (std::size_t r = 0; parents && r < rows; r++) {
        const std::int32_t parent = parents[first + r], row = static_cast<std::int32_t>(r);
        if (parent < -1 || parent >= row)
            fail(in.op, "verify_parents[", first + r, "] is ", parent, ", expected a row before row ", r,
                 " of sequence ", s, ", or -1 for the past");
        tree |= parent != row - 1;
    }
    if (tree && rows > max_tree_rows)
        fail(in.op, "sequence ", s, " is a tree of ", rows, " rows, expected at most ", max_tree_rows,
             "; make it smaller");
    return tree;
}

// Chunks of the KV heads of sequence `s`.
std::size_t chunks_of(const VerifyCall& call, const Sequences& in, const Selection& selection,
                      std::size_t s) {
    std::size_t chunks = 0;
    for (std::size_t h = 0; h < call.keys.heads; h++) {
        const std::int32_t count = selection.counts ? selection.counts[h * in.count + s] : -1;
        const std::size_t blocks = count == -1 ? in.blocks(s) : static_cast<std::size_t>(count);
        chunks += (blocks + chunk_blocks - 1) / chunk_blocks;
    }
    return chunks;
}

// Rows of sequence `s` that are worked on together: fewer where each thread gets one of `parts` parts.
std::size_t rows_together(const VerifyCall& call, const VerifyKernels& kernels, const Sequences& in,
                          std::size_t s, bool tree, std::size_t parts) {
    const std::size_t chunks = (in.blocks(s) + chunk_blocks - 1) / chunk_blocks;
    std::size_t rows = tree ? group_rows : std::min(group_rows, (in.row_count(s) + parts - 1) / parts);
    while (!tree && rows > 1 && chunks * kernels.partial_floats(call, rows) > wave_floats)
        rows /= 2;
    return rows;
}

} // namespace

void VerifyPlan::build(const VerifyCall& call, const VerifyKernels& kernels, const Sequences& in,
                       const Selection& selection, Parents parents, std::size_t threads) {
    sequences.clear();
    heads.clear();
    items.clear();
    copies.clear();
    waves.clear();
    work = worker_floats = 0;
    in.check(-1);
    std::size_t groups = 0; // at most one a row
    std::size_t chunks = 0; // of all KV heads
    for (std::size_t s = 0; s < in.count; s++) {
        groups += in.active(s) ? in.row_count(s) : 0;
        chunks += in.active(s) ? chunks_of(call, in, selection, s) : 0;
    }
    sequences.reserve(groups); // heads point into it
    // Where there are fewer chunks than threads, several threads read a chunk, each for some of the rows.
    const std::size_t parts = chunks ? (threads + chunks - 1) / chunks : 1;
    positions_.resize(in.rows);
    seen_.resize(in.rows);
    first_keys_.resize(in.rows);
    for (std::size_t s = 0; s < in.count; s++) {
        const std::size_t rows = in.row_count(s);
        if (!in.active(s)) {
            for (std::size_t r = 0; r < rows; r += copy_rows)
                copies.push_back({in.first_row(s) + r, std::min(copy_rows, rows - r)});
            work += rows * call.values.heads * call.group * call.values.size;
            continue;
        }
        in.check_table(s, std::min(call.keys.blocks, call.values.blocks));
        const bool tree = check_parents(in, parents, s);
        if (tree && !call.causal)
            fail(in.op, "sequence ", s, " is a tree, expected a chain where attribute causal is false");
        check_lists(call, in, selection, s);
        const std::size_t together = rows_together(call, kernels, in, s, tree, parts);
        for (std::size_t r = 0; r < rows; r += together) {
            add_rows(call, in, tree ? parents : nullptr, s, r, std::min(together, rows - r));
            add_heads(call, in, selection, s);
        }
    }
    add_waves(call, kernels);
    for (Wave& wave : waves) {
        wave.first_item = items.size();
        for (std::size_t h = wave.first_head, next; h < wave.last_head; h = next) {
            const std::size_t left = wave.last_head - h, own = call.keys.heads - h % call.keys.heads;
            next = h + std::min(left, own);
            add_items(call, kernels, &heads[h], next - h, chunks, threads);
        }
        wave.last_item = items.size();
    }
}

void VerifyPlan::add_rows(const VerifyCall& call, const Sequences& in, Parents parents, std::size_t s,
                          std::size_t begin, std::size_t rows) {
    const std::size_t first = in.first_row(s) + begin;
    const std::int32_t before = in.past_lens[s];
    // Where all rows see all, those that are not worked on here count as past, as they lie in any order.
    const std::size_t others = call.causal ? begin : in.row_count(s) - rows;
    const std::int32_t past = before + static_cast<std::int32_t>(others);
    VerifySequence sequence{first,
                            rows,
                            past,
                            in.table(s),
                            &positions_[first],
                            &seen_[first],
                            &first_keys_[first],
                            0,
                            parents != nullptr};
    for (std::size_t r = 0; r < rows; r++) {
        const std::int32_t parent = parents ? parents[first + r] : static_cast<std::int32_t>(r) - 1;
        std::int32_t position = past;
        std::uint64_t seen = 0;
        if (!call.causal) {
            position = past + static_cast<std::int32_t>(rows) - 1;
            seen = ~std::uint64_t{0} >> (64 - rows);
        } else if (parent >= 0) {
            position = sequence.positions[parent] + 1;
            seen = sequence.seen[parent];
            // A window of w tokens ends at the ancestor w - 1 steps up.
            for (std::size_t j = 0; call.window > 0 && j < r; j++)
                if ((seen >> j & 1) && position - sequence.positions[j] >= call.window)
                    seen &= ~(std::uint64_t{1} << j);
        }
        std::int32_t first_key = 0;
        if (call.past_window > 0)
            first_key = before - call.past_window;
        else if (call.window > 0)
            first_key = position - call.window + 1;
        positions_[first + r] = position;
        seen_[first + r] = seen | std::uint64_t{1} << r;
        first_keys_[first + r] = std::max(first_key, 0);
        sequence.last_first_key = std::max(sequence.last_first_key, first_key);
    }
    sequences.push_back(sequence);
}

void VerifyPlan::add_heads(const VerifyCall& call, const Sequences& in, const Selection& selection,
                           std::size_t s) {
    const VerifySequence& sequence = sequences.back();
    // The first row, which follows none of the others, sees furthest back.
    const std::size_t first = static_cast<std::size_t>(sequence.first_keys[0]) / block_size;
    const std::size_t blocks =
        (static_cast<std::size_t>(sequence.past) + sequence.rows + block_size - 1) / block_size;
    for (std::size_t h = 0; h < call.keys.heads; h++) {
        VerifyHead head{};
        head.sequence = &sequence;
        head.head = h;
        head.begin = first;
        head.end = blocks;
        const std::int32_t count = selection.counts ? selection.counts[h * in.count + s] : -1;
        if (count != -1) {
            head.list = selection.blocks + h * selection.columns + in.first_column(s);
            const auto entry_of = [&](std::size_t block) {
                return static_cast<std::size_t>(
                    std::lower_bound(head.list, head.list + count, static_cast<std::int32_t>(block)) -
                    head.list);
            };
            head.begin = entry_of(first);
            head.end = entry_of(blocks);
        }
        work += (head.end - head.begin) * block_size * sequence.rows * call.group *
                (call.keys.size + call.values.size);
        head.chunks = (head.end + chunk_blocks - 1) / chunk_blocks - head.begin / chunk_blocks;
        heads.push_back(head);
    }
}

void VerifyPlan::add_waves(const VerifyCall& call, const VerifyKernels& kernels) {
    std::size_t floats = 0, most = 0;
    partial_begins_.resize(heads.size());
    for (std::size_t h = 0; h < heads.size(); h++) {
        const std::size_t own = heads[h].chunks * kernels.partial_floats(call, heads[h].sequence->rows);
        if (waves.empty() || floats + own > wave_floats) {
            waves.push_back({h, h, 0, 0, 0});
            floats = 0;
        }
        partial_begins_[h] = floats;
        waves.back().last_head = h + 1;
        waves.back().merge_work += heads[h].chunks > 1 ? own : 0;
        floats += own;
        most = std::max(most, floats);
    }
    // A whole wave at once: pages that no pass touches cost nothing, while a buffer that grows with the
    // context leaves holes in the C library's heap, 42 MB of them at 16k tokens.
    float* partials = partials_.reserve(std::max(most, wave_floats));
    for (std::size_t h = 0; h < heads.size(); h++)
        heads[h].partials = partials + partial_begins_[h];
}

// Dense heads of a sequence share items as far as the cores' caches and the number of threads allow.
void VerifyPlan::add_items(const VerifyCall& call, const VerifyKernels& kernels, const VerifyHead* first,
                           std::size_t count, std::size_t chunks, std::size_t threads) {
    const VerifySequence& sequence = *first->sequence;
    const std::size_t own = kernels.head_floats(call, sequence.rows);
    const bool dense = std::all_of(first, first + count, [](const VerifyHead& head) { return !head.list; });
    std::size_t together = 1;
    if (dense) {
        together = item_floats / (own + kernels.partial_floats(call, sequence.rows));
        together = std::clamp<std::size_t>(together, 1, count);
        while (together > 1 && chunks / together < items_per_thread * threads)
            together = (together + 1) / 2;
    }
    worker_floats = std::max(worker_floats, kernels.shared_floats(call, sequence.rows) + together * own);
    for (std::size_t h = 0; h < count; h += together)
        for (std::size_t chunk = 0; chunk < first[h].chunks; chunk++)
            items.push_back({first + h, std::min(together, count - h), chunk});
}

} // namespace ovspec
