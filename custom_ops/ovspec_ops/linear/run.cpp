#include "linear/run.hpp"

#include <algorithm>

#include "common/parallel.hpp"
#include "common/tensors.hpp"

namespace ovspec {
namespace {

// Tasks per thread, if there are enough panels: several, so that the threads finish at about the same time.
constexpr std::size_t tasks_of_thread = 4;
// Rows that are computed together: their weights are read once, and up to about 4,000 inputs their digits fit
// in the L2 cache.
constexpr std::size_t round_rows = 256;

// Never destroyed: plugin threads may outlive static objects.
Pool<FloatBuffer>& buffers() {
    static auto* pool = new Pool<FloatBuffer>;
    return *pool;
}

// With few rows two panels at once keep the memory busy; one row, and many rows, are read once for more
// panels. What one thread does alone needs no small tasks: one row times 8 panels of 256 inputs takes 2.0 us
// panel by panel, and 1.4 us in fours.
std::size_t panels_of_task(std::size_t panels, std::size_t rows, std::size_t work) {
    const std::size_t tasks =
        runs_alone(work)
            ? 1
            : tasks_of_thread * static_cast<std::size_t>(tbb::this_task_arena::max_concurrency());
    return std::clamp<std::size_t>(panels / tasks, 1, rows == 1 || rows > block_rows ? most_panels : 2);
}

std::size_t panels_of(std::size_t size) {
    return (size + panel_width - 1) / panel_width;
}

// Where the `count` panels from `first` on go, for rows from `row` on.
void set_targets(const LinearOutput* outputs, std::size_t row, std::size_t first, std::size_t count,
                 PanelTarget* targets) {
    std::size_t output = 0;
    for (; first >= panels_of(outputs[output].size); output++)
        first -= panels_of(outputs[output].size);
    for (std::size_t p = 0; p < count; p++, first++) {
        if (first == panels_of(outputs[output].size)) {
            output++;
            first = 0;
        }
        const LinearOutput& to = outputs[output];
        const std::size_t at = first * panel_width;
        targets[p] = {to.y + row * to.size + at, to.size, std::min(panel_width, to.size - at)};
    }
}

} // namespace

void run_linear(const LinearWeights& weights, const float* x, std::size_t rows, const LinearOutput* outputs,
                std::size_t count) {
    const LinearKernels& kernels = OVSPEC_KERNELS(linear_kernels);
    std::size_t panels = 0;
    for (std::size_t i = 0; i < count; i++)
        panels += panels_of(outputs[i].size);
    const std::size_t row_work = panels * panel_width * weights.inputs;
    const std::size_t task_panels = panels_of_task(panels, rows, std::min(rows, round_rows) * row_work),
                      tasks = (panels + task_panels - 1) / task_panels;
    auto packed_rows = buffers().take();
    for (std::size_t row = 0; row < rows; row += round_rows) {
        const std::size_t some = std::min(round_rows, rows - row);
        const RowBlocks blocks = kernels.blocks(weights, some);
        const std::size_t block_bytes = kernels.packed_bytes(weights, blocks.most);
        auto* packed = reinterpret_cast<std::uint8_t*>(
            packed_rows->reserve(blocks.count * block_bytes / sizeof(float) + 1));
        parallel_items(blocks.count, 4 * some * weights.inputs, [&](std::size_t block) {
            const std::size_t first = blocks.begin(block), count = blocks.begin(block + 1) - first;
            kernels.pack(weights, x + (row + first) * weights.inputs, count, blocks.most,
                         packed + block * block_bytes);
        });
        parallel_items(tasks, some * row_work, [&](std::size_t task) {
            const std::size_t first = task * task_panels, of_task = std::min(task_panels, panels - first);
            PanelTarget targets[most_panels];
            set_targets(outputs, row, first, of_task, targets);
            auto scratch = buffers().take();
            kernels.product(weights, first, of_task, packed, some, targets,
                            scratch->reserve(kernels.scratch_floats(weights, some)));
        });
    }
}

} // namespace ovspec
