#include "gated_mlp/run.hpp"

#include <algorithm>
#include <vector>

#include "common/parallel.hpp"
#include "common/tensors.hpp"

namespace ovspec {
namespace {

// Channels of one task: enough to stream the weights, few enough to balance the threads, and a multiple of
// every kernel's tile (16 and 3).
constexpr std::size_t block_channels = 48;
// Rows of one round: their activations stay in the L2 cache.
constexpr std::size_t round_rows = 64;

struct Workspace {
    ChannelSet set;
    std::vector<std::size_t> rows; // of the pass that go through together
    FloatBuffer gate_rows, up_rows, inner_rows;
    FloatBuffer gates;                     // `[rows, channels]`, activated
    FloatBuffer inner;                     // `[rows, entries of the view]`
    FloatBuffer scores;                    // `[channels]`
    FloatBuffer result;                    // `[rows, size]`
    const std::uint8_t* gate_of = nullptr; // in gate_rows
    const std::uint8_t* up_of = nullptr;   // in up_rows, or gate_rows where the formats agree
    std::vector<const std::uint8_t*> inner_of;
};

bool same_rows(const ChannelMatrix& a, const ChannelMatrix& b) {
    return a.format == b.format && a.groups == b.groups;
}

// The rows `work.rows` of a call, all with the same channels.
class Round {
public:
    Round(const GatedMlpCall& call, Workspace& work)
        : kernels_(OVSPEC_KERNELS(gated_mlp_kernels)), call_(call), w_(call.weights), work_(work),
          rows_(work.rows.size()), size_(w_.up.size), channels_(w_.up.channels) {}

    void pack_rows() {
        if (!call_.gates)
            work_.gate_of = pack(w_.gate, work_.gate_rows);
        const bool same = !call_.gates && same_rows(w_.gate, w_.up);
        work_.up_of = same ? work_.gate_of : pack(w_.up, work_.up_rows);
    }

    // Computes activation(gate) of all channels and keeps those with the highest scores.
    void choose() {
        gate_all();
        work_.set.keep_highest(score(), channels_, static_cast<std::size_t>(call_.limit));
        work_.set.arrange(group_size());
    }

    void keep_all() {
        work_.set.keep_all(channels_);
        work_.set.arrange(group_size());
    }

    // inner[row] = activation(gate) * up of the kept channels; `gated`: gates are there already
    void project(bool gated) {
        const ChannelView view = work_.set.view();
        float* inner = work_.inner.reserve(rows_ * view.count);
        const float* gates = gated ? work_.gates.reserve(rows_ * channels_) : nullptr;
        const bool given = gated || call_.gates;
        const std::size_t macs = rows_ * view.count * size_ * (given ? 1 : 2);
        parallel_items(blocks(view.count), macs, [&](std::size_t block) {
            const std::size_t first = block * block_channels;
            const std::size_t count = std::min(block_channels, view.count - first);
            const ChannelSpan span{view.channels + first, count, view.count - first};
            FloatBuffer& buffer = of_this_thread<FloatBuffer>();
            const std::size_t of_gate = given ? 0 : kernels_.scratch_floats(w_.gate);
            const std::size_t scratch = std::max(of_gate, kernels_.scratch_floats(w_.up));
            float* ups = buffer.reserve(rows_ * block_channels + scratch);
            float* rest = ups + rows_ * block_channels;
            float* to = inner + first;
            for (std::size_t r = 0; given && r < rows_; r++) {
                const float* row = gated ? gates + r * channels_ : call_.gates + work_.rows[r] * channels_;
                for (std::size_t i = 0; i < count; i++)
                    to[r * view.count + i] = row[span.channels[i]];
            }
            if (!given)
                kernels_.project(w_.gate, span, work_.gate_of, rows_, to, view.count, rest);
            kernels_.project(w_.up, span, work_.up_of, rows_, ups, block_channels, rest);
            for (std::size_t r = 0; r < rows_; r++) {
                if (!gated)
                    kernels_.activate(call_.activation, to + r * view.count, count);
                kernels_.multiply(to + r * view.count, ups + r * block_channels, count);
            }
        });
        for (const std::size_t entry : work_.set.padding())
            for (std::size_t r = 0; r < rows_; r++)
                inner[r * view.count + entry] = 0.0f;
    }

    // Every task owns a block of outputs and passes the channels in ascending order: no sum depends on the
    // number of threads.
    void down() {
        const ChannelView view = work_.set.view();
        const float* inner = work_.inner.reserve(rows_ * view.count);
        const std::size_t bytes = kernels_.packed_inner_bytes(w_.down, view);
        std::uint8_t* packed = work_.inner_rows.reserve_bytes(rows_ * bytes);
        work_.inner_of.resize(rows_);
        parallel_items(rows_, 4 * rows_ * view.count, [&](std::size_t r) {
            kernels_.pack_inner(w_.down, view, inner + r * view.count, packed + r * bytes);
            work_.inner_of[r] = packed + r * bytes;
        });
        float* result = work_.result.reserve(rows_ * size_);
        const std::size_t width = outputs_of_task();
        const std::size_t tasks = (size_ + width - 1) / width;
        parallel_items(tasks, rows_ * view.count * size_, [&](std::size_t task) {
            const std::size_t first = task * width, count = std::min(width, size_ - first);
            kernels_.down(w_.down, view, first, count, work_.inner_of.data(), rows_, result + first, size_);
        });
        for (std::size_t r = 0; r < rows_; r++)
            std::copy_n(result + r * size_, size_, call_.y + work_.rows[r] * size_);
    }

private:
    static std::size_t blocks(std::size_t channels) {
        return (channels + block_channels - 1) / block_channels;
    }

    // Outputs of a task of `down`: wide tasks read neighbouring cache lines, but every thread needs one.
    std::size_t outputs_of_task() const {
        const std::size_t threads = threads_here();
        const std::size_t share = (size_ + threads - 1) / threads;
        return std::min(task_width, (share + down_width - 1) / down_width * down_width);
    }

    std::size_t group_size() const { return channels_ / w_.down.groups; }

    const std::uint8_t* pack(const ChannelMatrix& matrix, FloatBuffer& buffer) const {
        const std::size_t bytes = kernels_.packed_bytes(matrix), count = (rows_ + row_block - 1) / row_block;
        std::uint8_t* to = buffer.reserve_bytes(count * bytes);
        parallel_items(count, 4 * rows_ * size_, [&](std::size_t block) {
            const float* values[row_block];
            const std::size_t first = block * row_block, some = std::min(row_block, rows_ - first);
            for (std::size_t r = 0; r < some; r++)
                values[r] = call_.x + work_.rows[first + r] * size_;
            kernels_.pack(matrix, values, some, to + block * bytes);
        });
        return to;
    }

    void activate_gates() {
        float* gates = work_.gates.reserve(rows_ * channels_);
        parallel_items(rows_, 16 * rows_ * channels_, [&](std::size_t r) {
            float* to = gates + r * channels_;
            std::copy_n(call_.gates + work_.rows[r] * channels_, channels_, to);
            kernels_.activate(call_.activation, to, channels_);
        });
    }

    void gate_all() {
        if (call_.gates)
            return activate_gates();
        float* gates = work_.gates.reserve(rows_ * channels_);
        work_.set.keep_all(channels_);
        work_.set.arrange(channels_);
        const std::uint32_t* all = work_.set.view().channels;
        parallel_items(blocks(channels_), rows_ * channels_ * size_, [&](std::size_t block) {
            const std::size_t first = block * block_channels,
                              count = std::min(block_channels, channels_ - first);
            FloatBuffer& buffer = of_this_thread<FloatBuffer>();
            float* scratch = buffer.reserve(kernels_.scratch_floats(w_.gate));
            const ChannelSpan span{all + first, count, channels_ - first};
            kernels_.project(w_.gate, span, work_.gate_of, rows_, gates + first, channels_, scratch);
            for (std::size_t r = 0; r < rows_; r++)
                kernels_.activate(call_.activation, gates + r * channels_ + first, count);
        });
    }

    // A channel's score: the largest magnitude of its activated gate over the rows.
    const float* score() {
        const float* gates = work_.gates.reserve(rows_ * channels_);
        float* scores = work_.scores.reserve(channels_);
        std::fill_n(scores, channels_, 0.0f);
        for (std::size_t r = 0; r < rows_; r++)
            kernels_.add_largest(scores, gates + r * channels_, channels_);
        return scores;
    }

    const GatedMlpKernels& kernels_;
    const GatedMlpCall& call_;
    const GatedMlpWeights& w_;
    Workspace& work_;
    std::size_t rows_, size_, channels_;
};

} // namespace

std::size_t run_gated_mlp(const GatedMlpCall& call) {
    auto work = Pool<Workspace>::take();
    const auto limited = [&](std::size_t row) {
        return call.limit >= 0.0f && (!call.row_weights || call.row_weights[row] > 0.0f);
    };
    std::size_t read = 0;
    // One set for all rows that are limited, however many.
    work->rows.clear();
    for (std::size_t row = 0; row < call.rows; row++)
        if (limited(row))
            work->rows.push_back(row);
    if (!work->rows.empty()) {
        Round round(call, *work);
        round.pack_rows();
        round.choose();
        round.project(true);
        round.down();
        read = work->set.count();
    }
    for (std::size_t row = 0; row < call.rows;) {
        work->rows.clear();
        for (; row < call.rows && work->rows.size() < round_rows; row++)
            if (!limited(row))
                work->rows.push_back(row);
        if (work->rows.empty())
            break;
        Round round(call, *work);
        round.pack_rows();
        round.keep_all();
        round.project(false);
        round.down();
        read = work->set.count();
    }
    return read;
}

} // namespace ovspec
