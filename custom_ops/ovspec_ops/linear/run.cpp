#include "linear/run.hpp"

#include <algorithm>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "linear/adapted_rows.hpp"

namespace ovspec {
namespace {

// Tasks per thread, if there are enough panels: several, so that the threads finish at about the same time.
// In a team a task costs some 20 ns.
constexpr std::size_t tasks_of_thread = 4, tasks_of_member = 8;
// Rows that are computed together: their weights are read once, and up to about 4,000 inputs their digits fit
// in the L2 cache.
constexpr std::size_t round_rows = 256;
// Rounds whose rows are packed before a product begins. Their tasks are shared by the threads as a whole:
// waiting for each other after every round took a tenth of a prompt's time.
constexpr std::size_t wave_rounds = 4;

// With few rows two panels at once keep the memory busy. With one row or many a task takes up to four, so
// that the packed rows are read less often. What one thread does alone needs no small tasks: one row times 8
// panels of 256 inputs takes 2.0 us panel by panel, and 1.4 us in fours.
std::size_t panels_of_task(std::size_t panels, std::size_t rows, std::size_t work) {
    const std::size_t tasks =
        runs_alone(work) ? 1 : (Team::here() ? tasks_of_member : tasks_of_thread) * threads_here();
    return std::clamp<std::size_t>(panels / tasks, 1, rows == 1 || rows > block_rows ? most_panels : 2);
}

std::size_t panels_of(std::size_t size) {
    return (size + panel_width - 1) / panel_width;
}

// each(p, output, panel): of the `count` panels from `first` on, whose panel each is.
template <class Each>
void each_panel(const LinearOutput* outputs, std::size_t first, std::size_t count, const Each& each) {
    std::size_t output = 0;
    for (; first >= panels_of(outputs[output].size); output++)
        first -= panels_of(outputs[output].size);
    for (std::size_t p = 0; p < count; p++, first++) {
        if (first == panels_of(outputs[output].size)) {
            output++;
            first = 0;
        }
        each(p, output, first);
    }
}

// Where the `count` panels from `first` on go, for rows from `row` on.
void set_targets(const LinearOutput* outputs, std::size_t row, std::size_t first, std::size_t count,
                 PanelTarget* targets) {
    each_panel(outputs, first, count, [&](std::size_t p, std::size_t output, std::size_t panel) {
        const LinearOutput& to = outputs[output];
        const std::size_t at = panel * panel_width;
        targets[p] = {to.y + row * to.size + at, to.size, std::min(panel_width, to.size - at)};
    });
}

// Rows that are multiplied together, in packed blocks.
struct Round {
    RowBlocks blocks;
    std::size_t block_bytes;

    Round(const LinearKernels& kernels, const LinearWeights& weights, std::size_t rows)
        : blocks(kernels.blocks(weights, rows)), block_bytes(kernels.packed_bytes(weights, blocks.most)) {}
};

// Rounds that are packed together: all but the last have round_rows rows.
struct Wave {
    std::size_t rows, rounds;
    Round full, last;

    Wave(const LinearKernels& kernels, const LinearWeights& weights, std::size_t count)
        : rows(count), rounds((count + round_rows - 1) / round_rows),
          full(kernels, weights, std::min(count, round_rows)),
          last(kernels, weights, count - (rounds - 1) * round_rows) {}

    const Round& of(std::size_t round) const { return round + 1 < rounds ? full : last; }
    std::size_t blocks() const { return (rounds - 1) * full.blocks.count + last.blocks.count; }
    std::size_t round_bytes() const { return full.blocks.count * full.block_bytes; }
};

// The products of low rank of a pass; null where no row has any.
const AdaptedRows* adapted_rows(const PassAdapters* adapters, std::size_t rows, std::size_t outputs) {
    if (!adapters)
        return nullptr;
    AdaptedRows& found = of_this_thread<AdaptedRows>();
    found.find(*adapters, rows, outputs);
    return found.groups().empty() ? nullptr : &found;
}

// A x of the rows of a span.
void project(const AdaptedRows& adapted, const AdaptedRows::Span& span, const float* x, std::size_t inputs) {
    OVSPEC_KERNELS(linear_kernels)
        .low_rank_down(adapted.product(span.product).low_rank, x + span.row * inputs, inputs, span.rows,
                       adapted.values(span.group, span.product, span.row),
                       adapted.groups()[span.group].ranks);
}

// Adds B times what A x gave to the sums of the `count` panels from `first` on, of `rows` rows from `row` on.
void add_adapted(const AdaptedRows& adapted, const LinearOutput* outputs, std::size_t row, std::size_t rows,
                 std::size_t first, std::size_t count, const PanelTarget* targets) {
    const LinearKernels& kernels = OVSPEC_KERNELS(linear_kernels);
    for (std::size_t g = 0; g < adapted.groups().size(); g++) {
        const AdaptedRows::Group& group = adapted.groups()[g];
        const std::size_t begin = std::max(row, group.row),
                          end = std::min(row + rows, group.row + group.rows);
        if (begin >= end)
            continue;
        each_panel(outputs, first, count, [&](std::size_t p, std::size_t output, std::size_t panel) {
            const PanelTarget& to = targets[p];
            for (std::size_t i = group.products; i < adapted.end(g); i++) {
                const AdaptedRows::Product& product = adapted.product(i);
                const std::size_t rank = product.low_rank.rank;
                if (product.output == output)
                    kernels.low_rank_up(adapted.values(g, i, begin), group.ranks,
                                        product.low_rank.b + panel * rank * panel_width, rank, end - begin,
                                        to.width, to.y + (begin - row) * to.stride, to.stride);
            }
        });
    }
}

} // namespace

void run_linear(const LinearWeights& weights, const float* x, std::size_t rows, const LinearOutput* outputs,
                std::size_t count, const PassAdapters* adapters) {
    const LinearKernels& kernels = OVSPEC_KERNELS(linear_kernels);
    std::size_t panels = 0;
    for (std::size_t i = 0; i < count; i++)
        panels += panels_of(outputs[i].size);
    const std::size_t row_work = panels * panel_width * weights.inputs;
    const std::size_t task_panels = panels_of_task(panels, rows, std::min(rows, round_rows) * row_work),
                      tasks = (panels + task_panels - 1) / task_panels;
    const AdaptedRows* adapted = adapted_rows(adapters, rows, count);
    auto packed_rows = Pool<FloatBuffer>::take();
    for (std::size_t row = 0; row < rows; row += wave_rounds * round_rows) {
        const Wave wave(kernels, weights, std::min(wave_rounds * round_rows, rows - row));
        std::uint8_t* packed = packed_rows->reserve_bytes(wave.rounds * wave.round_bytes());
        // What adapters take of all rows is computed with the first wave.
        const std::size_t blocks = wave.blocks(), spans = adapted && row == 0 ? adapted->spans().size() : 0;
        const std::size_t work = 4 * wave.rows + (spans ? adapted->ranks() : 0);
        parallel_items(blocks + spans, work * weights.inputs, [&](std::size_t item) {
            if (item >= blocks)
                return project(*adapted, adapted->spans()[item - blocks], x, weights.inputs);
            const std::size_t round = item / wave.full.blocks.count, block = item % wave.full.blocks.count;
            const Round& of = wave.of(round);
            const std::size_t first = of.blocks.begin(block), count = of.blocks.begin(block + 1) - first;
            kernels.pack(weights, x + (row + round * round_rows + first) * weights.inputs, count,
                         of.blocks.most, packed + round * wave.round_bytes() + block * of.block_bytes);
        });
        parallel_items(wave.rounds * tasks, wave.rows * row_work, [&](std::size_t item) {
            const std::size_t round = item / tasks, first = item % tasks * task_panels;
            const std::size_t of_task = std::min(task_panels, panels - first);
            const std::size_t some = wave.of(round).blocks.rows;
            PanelTarget targets[most_panels];
            set_targets(outputs, row + round * round_rows, first, of_task, targets);
            FloatBuffer& scratch = of_this_thread<FloatBuffer>();
            kernels.product(weights, first, of_task, packed + round * wave.round_bytes(), some, targets,
                            scratch.reserve(kernels.scratch_floats(weights, some)));
            if (adapted)
                add_adapted(*adapted, outputs, row + round * round_rows, some, first, of_task, targets);
        });
    }
}

} // namespace ovspec
