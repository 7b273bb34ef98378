#include "moe/op.hpp"

#include <algorithm>
#include <cmath>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "moe/groups.hpp"
#include "moe/kernel.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "SparseMoE";

enum Input : std::size_t {
    hidden,
    indices,
    weights,
    gate, // of each projection: data, scales, zero points
    up = gate + 3,
    down = up + 3,
    without_biases = down + 3,
    gate_bias = without_biases, // f32 `[experts, out]`, or no element
    up_bias,
    down_bias,
    with_biases,
};

constexpr const char* projection_name(std::size_t first) {
    return first == gate ? "gate" : first == up ? "up" : "down";
}

// Neurons of one task: enough to stream the weights, few enough to balance the threads.
constexpr std::size_t block_neurons = 32;
// Rows times experts that one round holds in memory: a long prefill runs in several.
constexpr std::size_t round_pairs = 8192;
constexpr std::size_t line = 64;

template <class... Parts> [[noreturn]] void fail_weights(std::size_t first, const Parts&... parts) {
    fail(name, projection_name(first), " ", parts...);
}

// The weights `[experts, out, ...]` of one projection, read off types and shapes.
ExpertMatrix describe(std::size_t first, std::size_t in, const ov::element::Type& type, const ov::Shape& data,
                      const ov::Shape& scales, const ov::Shape& zero_points) {
    if (data.size() != 3 || data[1] == 0 || in == 0)
        fail_weights(first, "weights are of shape ", data, " for rows of ", in,
                     " values, expected [experts, out, bytes] and at least 1 value");
    ExpertMatrix matrix{};
    matrix.out = data[1];
    matrix.in = in;
    matrix.row_bytes = data[2] * type.size();
    const std::size_t rows = data[0] * data[1];
    if (type == ov::element::f32 && data[2] == in) {
        matrix.format = WeightFormat::f32;
        return matrix;
    }
    if (type == ov::element::u8 && data[2] == 2 * in) {
        matrix.format = WeightFormat::f16;
        return matrix;
    }
    if (type != ov::element::u8 || (data[2] != in && 2 * data[2] != in))
        fail_weights(first, "weights are of shape ", data, ", expected rows of ", in, " f32, or of ", in,
                     " (u8), ", in / 2, " (u4) or ", 2 * in, " (f16) bytes");
    matrix.format = data[2] == in ? WeightFormat::u8 : WeightFormat::u4;
    const std::size_t entries = ov::shape_size(zero_points);
    matrix.groups = rows == 0 ? 1 : entries / rows;
    if (matrix.groups == 0 || entries != matrix.groups * rows || in % matrix.groups != 0)
        fail_weights(first, "zero points are of shape ", zero_points, ", expected [", data[0], ", ", data[1],
                     ", groups] with groups that divide ", in);
    if (ov::shape_size(scales) != 2 * entries)
        fail_weights(first, "scales hold ", ov::shape_size(scales), " bytes, expected ", 2 * entries,
                     ": f16, as many as zero points");
    const std::size_t group = in / matrix.groups;
    if (matrix.format == WeightFormat::u8 && matrix.groups != 1)
        fail_weights(first, "weights of 8 bits have ", matrix.groups,
                     " groups, expected 1: a scale per neuron");
    const bool power_of_two = (group & (group - 1)) == 0;
    if (matrix.groups > max_groups || (matrix.groups > 1 && (group < 32 || !power_of_two)))
        fail_weights(first, "weights of 4 bits have ", matrix.groups, " groups of ", group,
                     ", expected one group per neuron, or at most ", max_groups,
                     " groups of a power of two of at least 32");
    return matrix;
}

struct Projections {
    ExpertMatrix gate, up, down;
    std::size_t experts;
};

void set_bias(const ov::TensorVector& inputs, std::size_t input, const char* what, std::size_t experts,
              ExpertMatrix& matrix) {
    if (inputs.size() <= input || inputs[input].get_size() == 0)
        return;
    check_tensor(name, inputs, input, what, ov::element::f32,
                 {static_cast<std::int64_t>(experts), static_cast<std::int64_t>(matrix.out)});
    matrix.bias = inputs[input].data<const float>();
}

// The three projections of rows of `hidden_size` values, from types and shapes that `type_of(input)` and
// `shape_of(input)` give; throws where they do not fit each other.
template <class TypeOf, class ShapeOf>
Projections describe(std::size_t hidden_size, const TypeOf& type_of, const ShapeOf& shape_of) {
    const auto matrix = [&](std::size_t first, std::size_t in) {
        return describe(first, in, type_of(first), shape_of(first), shape_of(first + 1), shape_of(first + 2));
    };
    const ExpertMatrix gates = matrix(gate, hidden_size);
    const Projections p{gates, matrix(up, hidden_size), matrix(down, gates.out), shape_of(gate)[0]};
    if (p.up.out != p.gate.out)
        fail_weights(up, "has ", p.up.out, " neurons, expected the gate's ", p.gate.out);
    if (p.down.out != hidden_size)
        fail_weights(down, "has ", p.down.out, " neurons, expected the hidden size ", hidden_size);
    for (const std::size_t first : {std::size_t{up}, std::size_t{down}})
        if (shape_of(first)[0] != p.experts)
            fail_weights(first, "has ", shape_of(first)[0], " experts, expected the gate's ", p.experts);
    return p;
}

Projections view(const ov::TensorVector& inputs, std::size_t hidden_size) {
    Projections p = describe(
        hidden_size, [&](std::size_t i) { return inputs[i].get_element_type(); },
        [&](std::size_t i) { return inputs[i].get_shape(); });
    set_data(name, p.gate, inputs, gate);
    set_data(name, p.up, inputs, up);
    set_data(name, p.down, inputs, down);
    set_bias(inputs, gate_bias, "gate bias", p.experts, p.gate);
    set_bias(inputs, up_bias, "up bias", p.experts, p.up);
    set_bias(inputs, down_bias, "down bias", p.experts, p.down);
    return p;
}

// Two tiles of one task.
struct Tiles {
    FloatBuffer first;
    FloatBuffer second;
};

struct Workspace {
    ExpertGroups groups;
    FloatBuffer gate_rows;                                    // packed, `[rows]`
    FloatBuffer up_rows;                                      // packed, `[rows]`, where the formats differ
    FloatBuffer inner;                                        // `[pairs, intermediate]`
    FloatBuffer down_rows;                                    // packed, `[pairs]`
    std::vector<const std::uint8_t*> gate_of, up_of, down_of; // packed row of every pair
    std::vector<char> chosen;                                 // per expert, in any round of the pass
};

std::size_t blocks_of(std::size_t neurons) {
    return (neurons + block_neurons - 1) / block_neurons;
}

struct Round {
    const MoeKernels& kernels;
    ExpertMatrix gate, up, down;
    GatedActivation activation;
    std::size_t hidden_size, intermediate_size;
    Workspace& work;

    const float* x; // `[rows, hidden]` of the whole pass
    float* y;
    std::size_t first_row, rows;

    std::size_t macs() const { return work.groups.pairs() * hidden_size * intermediate_size; }

    // Packs `count` rows of `size` values each; returns the first and the bytes between two.
    std::pair<std::uint8_t*, std::size_t> pack(FloatBuffer& buffer, WeightFormat format, const float* from,
                                               std::size_t count, std::size_t size) const {
        const std::size_t bytes = kernels.packed_bytes(format, size);
        std::uint8_t* to = buffer.reserve_bytes(count * bytes);
        parallel_items(count, 4 * count * size,
                       [&](std::size_t i) { kernels.pack(format, from + i * size, size, to + i * bytes); });
        return {to, bytes};
    }

    void pack_hidden() {
        const ExpertGroups& groups = work.groups;
        const float* from = x + first_row * hidden_size;
        const auto [gate_rows, gate_bytes] = pack(work.gate_rows, gate.format, from, rows, hidden_size);
        const bool shared = gate.format == up.format;
        const auto [up_rows, up_bytes] = shared ? std::make_pair(gate_rows, gate_bytes)
                                                : pack(work.up_rows, up.format, from, rows, hidden_size);
        work.gate_of.resize(groups.pairs());
        work.up_of.resize(groups.pairs());
        for (std::size_t pair = 0; pair < groups.pairs(); pair++) {
            const std::size_t row = groups.rows[pair] - first_row;
            work.gate_of[pair] = gate_rows + row * gate_bytes;
            work.up_of[pair] = up_rows + row * up_bytes;
        }
    }

    // y of `rows` rows += the biases of neurons of an expert, from the first on.
    void add_bias(const ExpertMatrix& matrix, std::size_t expert, std::size_t first, std::size_t neurons,
                  float* y_of_rows, std::size_t row_count) const {
        for (std::size_t i = 0; matrix.bias != nullptr && i < row_count; i++)
            kernels.add(y_of_rows + i * block_neurons, matrix.bias + expert * matrix.out + first, neurons);
    }

    // inner[pair] = silu(gate . row) * (up . row), or as the activation has it
    void gate_and_up() {
        const ExpertGroups& groups = work.groups;
        float* inner = work.inner.reserve(groups.pairs() * intermediate_size);
        const std::size_t blocks = blocks_of(intermediate_size);
        parallel_items(groups.experts.size() * blocks, 2 * macs(), [&](std::size_t item) {
            const std::size_t entry = item / blocks, first = item % blocks * block_neurons;
            const std::size_t neurons = std::min(block_neurons, intermediate_size - first);
            const std::size_t begin = groups.begins[entry], count = groups.begins[entry + 1] - begin;
            const std::size_t expert = groups.experts[entry];
            Tiles& tiles = of_this_thread<Tiles>();
            float* ups = tiles.first.reserve(count * block_neurons);
            float* gates = tiles.second.reserve(count * block_neurons);
            kernels.product(gate, expert, first, neurons, work.gate_of.data() + begin, count, gates,
                            block_neurons);
            kernels.product(up, expert, first, neurons, work.up_of.data() + begin, count, ups, block_neurons);
            add_bias(gate, expert, first, neurons, gates, count);
            add_bias(up, expert, first, neurons, ups, count);
            for (std::size_t i = 0; i < count; i++) {
                float* gated = gates + i * block_neurons;
                if (activation.limit > 0.0f)
                    kernels.clamped_swiglu(gated, ups + i * block_neurons, activation, neurons);
                else
                    kernels.swiglu(gated, ups + i * block_neurons, neurons);
                std::copy(gated, gated + neurons, inner + (begin + i) * intermediate_size + first);
            }
        });
    }

    // Every task owns a block of outputs and passes the experts in ascending order: no sum depends on the
    // number of threads.
    void down_and_sum() {
        const ExpertGroups& groups = work.groups;
        const float* inner = work.inner.reserve(groups.pairs() * intermediate_size);
        const auto [packed, bytes] =
            pack(work.down_rows, down.format, inner, groups.pairs(), intermediate_size);
        work.down_of.resize(groups.pairs());
        for (std::size_t pair = 0; pair < groups.pairs(); pair++)
            work.down_of[pair] = packed + pair * bytes;
        parallel_items(blocks_of(hidden_size), macs(), [&](std::size_t block) {
            const std::size_t first = block * block_neurons;
            const std::size_t neurons = std::min(block_neurons, hidden_size - first);
            for (std::size_t row = first_row; row < first_row + rows; row++)
                std::fill_n(y + row * hidden_size + first, neurons, 0.0f);
            Tiles& tiles = of_this_thread<Tiles>();
            for (std::size_t entry = 0; entry < groups.experts.size(); entry++) {
                const std::size_t begin = groups.begins[entry], count = groups.begins[entry + 1] - begin;
                float* outputs = tiles.first.reserve(count * block_neurons);
                kernels.product(down, groups.experts[entry], first, neurons, work.down_of.data() + begin,
                                count, outputs, block_neurons);
                add_bias(down, groups.experts[entry], first, neurons, outputs, count);
                for (std::size_t i = 0; i < count; i++)
                    kernels.add_scaled(y + groups.rows[begin + i] * hidden_size + first,
                                       outputs + i * block_neurons, groups.shares[begin + i], neurons);
            }
        });
    }
};

} // namespace

void SparseMoE::check_attributes() const {
    if (!(attributes_.limit >= 0.0))
        fail(name, "attribute limit is ", attributes_.limit, ", expected 0 or more");
    if (!std::isfinite(attributes_.alpha))
        fail(name, "attribute alpha is ", attributes_.alpha, ", expected a finite number");
}

void SparseMoE::validate_and_infer_types() {
    check_attributes();
    check_input_count(*this, get_input_size() > without_biases ? with_biases : without_biases);
    check_input(*this, hidden, "hidden", ov::element::f32, {-1, -1});
    check_input(*this, indices, "indices", ov::element::i32, {-1, -1});
    check_input(*this, weights, "weights", ov::element::f32, {-1, -1});
    ov::Dimension rows = ov::Dimension::dynamic(), size = ov::Dimension::dynamic();
    const auto& shape = get_input_partial_shape(hidden);
    if (shape.rank().is_static()) {
        rows = shape[0];
        size = shape[1];
    }
    const auto known = [&](std::size_t first) {
        return get_input_partial_shape(first).is_static() && get_input_partial_shape(first + 1).is_static() &&
               get_input_partial_shape(first + 2).is_static();
    };
    if (size.is_static() && known(gate) && known(up) && known(down))
        describe(
            static_cast<std::size_t>(size.get_length()),
            [&](std::size_t i) { return get_input_element_type(i); },
            [&](std::size_t i) { return get_input_shape(i); });
    set_output_type(0, ov::element::f32, {rows, size});
    set_output_type(1, ov::element::i32, ov::PartialShape{1});
}

void SparseMoE::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    check_tensor(name, inputs, hidden, "hidden", ov::element::f32, {-1, -1});
    check_tensor(name, inputs, indices, "indices", ov::element::i32, {-1, -1});
    const ov::Shape shape = inputs[hidden].get_shape(), routing = inputs[indices].get_shape();
    if (routing[0] != shape[0] || inputs[weights].get_shape() != routing)
        fail(name, "indices are of shape ", routing, " and weights of ", inputs[weights].get_shape(),
             ", expected [rows, top_k] with the ", shape[0], " rows of hidden");
    outputs[0].set_shape(shape);
    outputs[1].set_shape({1});
    const std::size_t rows = shape[0], size = shape[1], top_k = routing[1];
    const Projections projections = view(inputs, size);

    auto work = Pool<Workspace>::take();
    Round round{OVSPEC_KERNELS(moe_kernels),
                projections.gate,
                projections.up,
                projections.down,
                {static_cast<float>(attributes_.limit), static_cast<float>(attributes_.alpha)},
                size,
                projections.gate.out,
                *work,
                inputs[hidden].data<const float>(),
                outputs[0].data<float>(),
                0,
                0};
    const std::size_t step = std::max<std::size_t>(round_pairs / std::max<std::size_t>(top_k, 1), 1);
    work->chosen.assign(projections.experts, 0);
    for (std::size_t first = 0; first < rows; first += step) {
        round.first_row = first;
        round.rows = std::min(step, rows - first);
        work->groups.group(name, inputs[indices].data<const std::int32_t>(),
                           inputs[weights].data<const float>(), first, round.rows, top_k,
                           projections.experts);
        round.pack_hidden();
        round.gate_and_up();
        round.down_and_sum();
        for (const std::size_t expert : work->groups.experts)
            work->chosen[expert] = 1;
    }
    outputs[1].data<std::int32_t>()[0] =
        static_cast<std::int32_t>(std::count(work->chosen.begin(), work->chosen.end(), 1));
}

} // namespace ovspec
