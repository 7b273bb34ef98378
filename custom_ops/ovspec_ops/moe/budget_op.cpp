#include "moe/budget_op.hpp"

#include <algorithm>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "moe/budget.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "ExpertBudget";
// A table of all of them is made in every pass.
constexpr std::int64_t most_experts = 1 << 16;

enum Input : std::size_t {
    indices,
    weights,
    budgets,
    subsequence_begins,
    past_lens,
    input_count,
};

struct Workspace {
    RoutingBudget::Buffers buffers;
    std::vector<char> limited;
};

// Rows of sequences under verification; without a table of sequences, all.
void find_limited(const ov::TensorVector& inputs, std::size_t rows, std::vector<char>& limited) {
    const std::size_t sequences = inputs[past_lens].get_size();
    if (sequences == 0) {
        limited.assign(rows, 1);
        return;
    }
    if (inputs[subsequence_begins].get_size() != sequences + 1)
        fail(name, "subsequence_begins holds ", inputs[subsequence_begins].get_size(), " values, expected ",
             sequences + 1, ": one more than verify_past_lens");
    const std::int32_t* begins = inputs[subsequence_begins].data<const std::int32_t>();
    const std::int32_t* past = inputs[past_lens].data<const std::int32_t>();
    limited.assign(rows, 0);
    for (std::size_t s = 0; s < sequences; s++) {
        if (begins[s] < 0 || begins[s] > begins[s + 1] || static_cast<std::size_t>(begins[s + 1]) > rows)
            fail(name, "subsequence_begins[", s, "] is ", begins[s], " and the next ", begins[s + 1],
                 ", expected numbers that ascend from 0 to the ", rows, " rows");
        if (past[s] >= 0)
            std::fill(limited.begin() + begins[s], limited.begin() + begins[s + 1], 1);
    }
    if (begins[0] != 0 || static_cast<std::size_t>(begins[sequences]) != rows)
        fail(name, "subsequence_begins covers ", begins[0], " to ", begins[sequences], ", expected 0 to the ",
             rows, " rows");
}

} // namespace

void ExpertBudget::check_attributes() const {
    if (attributes_.experts < 1 || attributes_.experts > most_experts)
        fail(name, "attribute experts is ", attributes_.experts, ", expected 1 to ", most_experts);
    check_at_least(name, "layer", attributes_.layer, 0);
}

void ExpertBudget::validate_and_infer_types() {
    check_attributes();
    check_input_count(*this, input_count);
    check_input(*this, indices, "indices", ov::element::i32, {-1, -1});
    check_input(*this, weights, "weights", ov::element::f32, {-1, -1});
    check_input(*this, budgets, "verify_expert_budgets", ov::element::i32, {-1});
    check_input(*this, subsequence_begins, "subsequence_begins", ov::element::i32, {-1});
    check_input(*this, past_lens, "verify_past_lens", ov::element::i32, {-1});
    set_output_type(0, ov::element::i32, get_input_partial_shape(indices));
    set_output_type(1, ov::element::f32, get_input_partial_shape(weights));
}

void ExpertBudget::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    check_tensor(name, inputs, indices, "indices", ov::element::i32, {-1, -1});
    check_tensor(name, inputs, weights, "weights", ov::element::f32, {-1, -1});
    const ov::Shape shape = inputs[indices].get_shape();
    if (inputs[weights].get_shape() != shape)
        fail(name, "weights hold ", inputs[weights].get_size(), " values, expected the ",
             inputs[indices].get_size(), " of indices");
    const auto layer = static_cast<std::size_t>(attributes_.layer),
               experts = static_cast<std::size_t>(attributes_.experts);
    if (inputs[budgets].get_size() <= layer)
        fail(name, "verify_expert_budgets holds ", inputs[budgets].get_size(),
             " values, expected one per layer with experts, and this is layer ", layer);
    const std::int32_t budget = inputs[budgets].data<const std::int32_t>()[layer];
    if (budget != -1 && (budget < 1 || static_cast<std::size_t>(budget) > experts))
        fail(name, "verify_expert_budgets[", layer, "] is ", budget, ", expected -1 (none) or 1 to ",
             experts);
    outputs[0].set_shape(shape);
    outputs[1].set_shape(shape);
    inputs[indices].copy_to(outputs[0]);
    inputs[weights].copy_to(outputs[1]);
    if (budget < 0)
        return;
    std::int32_t* kept = outputs[0].data<std::int32_t>();
    for (std::size_t i = 0; i < outputs[0].get_size(); i++)
        if (kept[i] < -1 || kept[i] >= attributes_.experts)
            fail(name, "indices hold ", kept[i], ", expected -1 (none) or an expert below ",
                 attributes_.experts);
    auto workspace = Pool<Workspace>::take();
    find_limited(inputs, shape[0], workspace->limited);
    RoutingBudget(kept, outputs[1].data<float>(), shape[1])
        .apply(static_cast<std::size_t>(budget), workspace->limited, experts, workspace->buffers);
}

} // namespace ovspec
