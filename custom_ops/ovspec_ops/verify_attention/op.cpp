#include "verify_attention/op.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "verify_attention/kernel.hpp"
#include "verify_attention/plan.hpp"

namespace ovspec {
namespace {

constexpr const char* name = "VerifyAttention";

enum Input : std::size_t {
    query,
    key_cache,
    value_cache,
    attention,
    subsequence_begins,
    past_lens,
    block_indices,
    block_indices_begins,
    selected_blocks,
    selected_counts,
    sinks,
    parents,
    input_count,
};

// A thread's part of the scratch: a cache line apart, so that threads do not share one.
struct alignas(64) Worker {
    FloatBuffer floats;
    VerifyScratch scratch;
};

struct Workspace {
    VerifyPlan plan;
    std::vector<std::unique_ptr<Worker>> workers;
};

Pool<Workspace>& workspaces() {
    static auto* pool = new Pool<Workspace>; // never destroyed: plugin threads may outlive static objects
    return *pool;
}

Selection view_selection(const ov::Tensor& blocks, const ov::Tensor& counts, std::size_t kv_heads,
                         const Sequences& sequences) {
    if (counts.get_size() == 0)
        return {nullptr, nullptr, 0};
    if (counts.get_shape() != ov::Shape{kv_heads, sequences.count})
        fail(name, "selected_counts holds " + std::to_string(counts.get_size()) + " values, expected [" +
                       std::to_string(kv_heads) + ", " + std::to_string(sequences.count) +
                       "], or none for dense");
    if (blocks.get_shape() != ov::Shape{kv_heads, sequences.table_size})
        fail(name, "selected_blocks holds " + std::to_string(blocks.get_size()) + " values, expected [" +
                       std::to_string(kv_heads) + ", " + std::to_string(sequences.table_size) +
                       "]: a column per entry of verify_block_indices");
    return {blocks.data<const std::int32_t>(), counts.data<const std::int32_t>(), sequences.table_size};
}

// A per-row or per-head input that may be left empty.
template <class T>
const T* optional_input(const ov::Tensor& tensor, const char* what, std::size_t count, const char* absent) {
    if (tensor.get_size() != 0 && tensor.get_size() != count)
        fail(name, std::string(what) + " holds " + std::to_string(tensor.get_size()) + " values, expected " +
                       std::to_string(count) + ", or none for " + absent);
    return tensor.get_size() ? tensor.data<const T>() : nullptr;
}

void run(Workspace& workspace, const VerifyCall& call, const VerifyKernels& kernels,
         const float* attention_rows) {
    VerifyPlan& plan = workspace.plan;
    const std::size_t slots = static_cast<std::size_t>(tbb::this_task_arena::max_concurrency());
    while (workspace.workers.size() < slots)
        workspace.workers.push_back(std::make_unique<Worker>());
    for (const auto& worker : workspace.workers)
        worker->scratch.prepared = nullptr;
    const std::size_t row = call.values.heads * call.group * call.values.size;

    parallel_items(plan.copies.size(), plan.work, [&](std::size_t i) {
        const VerifyPlan::Copy& copy = plan.copies[i];
        std::memcpy(call.output + copy.first_row * row, attention_rows + copy.first_row * row,
                    copy.rows * row * sizeof(float));
    });
    for (const VerifyPlan::Wave& wave : plan.waves) {
        parallel_items(wave.last_item - wave.first_item, plan.work, [&](std::size_t i) {
            const VerifyItem& item = plan.items[wave.first_item + i];
            // Negative on a thread that never entered TBB; it is the only one then.
            const int thread = std::max(0, tbb::this_task_arena::current_thread_index());
            Worker& worker = *workspace.workers.at(static_cast<std::size_t>(thread));
            worker.scratch.floats = worker.floats.reserve(plan.worker_floats);
            kernels.attend_chunk(call, item, worker.scratch);
            for (std::size_t h = 0; h < item.count; h++)
                if (item.heads[h].chunks == 1)
                    kernels.merge_chunks(call, item.heads[h]);
        });
        const std::size_t heads = wave.merge_work ? wave.last_head - wave.first_head : 0;
        parallel_items(heads, wave.merge_work, [&](std::size_t h) {
            if (plan.heads[wave.first_head + h].chunks > 1)
                kernels.merge_chunks(call, plan.heads[wave.first_head + h]);
        });
    }
}

} // namespace

VerifyAttention::VerifyAttention(const ov::OutputVector& inputs, const VerifyAttention& attributes)
    : Op(inputs), kv_heads_(attributes.kv_heads_), k_size_(attributes.k_size_), v_size_(attributes.v_size_),
      scale_(attributes.scale_), sliding_window_(attributes.sliding_window_) {
    constructor_validate_and_infer_types();
}

void VerifyAttention::validate_and_infer_types() {
    check_heads(name, kv_heads_);
    check_head_size(name, "k_size", k_size_);
    check_head_size(name, "v_size", v_size_);
    if (!std::isfinite(scale_))
        fail(name, "attribute scale is " + std::to_string(scale_) + ", expected a finite number");
    if (sliding_window_ < 0 || sliding_window_ > std::numeric_limits<std::int32_t>::max())
        fail(name, "attribute sliding_window is " + std::to_string(sliding_window_) +
                       ", expected 0 (none) or a length");
    check_input_count(*this, input_count);
    check_input(*this, query, "query", ov::element::f32, {-1, -1});
    check_cache_input(*this, key_cache, "key_cache", kv_heads_, k_size_);
    check_cache_input(*this, value_cache, "value_cache", kv_heads_, v_size_);
    check_input(*this, attention, "attention", ov::element::f32, {-1, -1});
    check_input(*this, subsequence_begins, "subsequence_begins", ov::element::i32, {-1});
    check_input(*this, past_lens, "verify_past_lens", ov::element::i32, {-1});
    check_input(*this, block_indices, "verify_block_indices", ov::element::i32, {-1});
    check_input(*this, block_indices_begins, "verify_block_indices_begins", ov::element::i32, {-1});
    check_input(*this, selected_blocks, "selected_blocks", ov::element::i32, {-1, -1});
    check_input(*this, selected_counts, "selected_counts", ov::element::i32, {-1, -1});
    check_input(*this, sinks, "sinks", ov::element::f32, {-1});
    check_input(*this, parents, "verify_parents", ov::element::i32, {-1});

    const auto keys = get_input_element_type(key_cache), values = get_input_element_type(value_cache);
    if (keys.is_static() && values.is_static() && keys != values)
        fail(name, "key_cache is of type " + keys.get_type_name() + " and value_cache of type " +
                       values.get_type_name() +
                       ", expected the same type; set KV_CACHE_PRECISION, not one of both");
    const auto& rows = get_input_partial_shape(query);
    ov::PartialShape out{-1, -1};
    if (rows.rank().is_static()) {
        const std::int64_t unit = kv_heads_ * k_size_;
        if (rows[1].is_static() && rows[1].get_length() % unit != 0)
            fail(name, "query has rows of " + std::to_string(rows[1].get_length()) +
                           " values, expected a multiple of kv_heads * k_size = " + std::to_string(unit));
        out[0] = rows[0];
        if (rows[1].is_static())
            out[1] = rows[1].get_length() / k_size_ * v_size_;
        check_input(*this, attention, "attention", ov::element::f32, out);
    }
    set_output_type(0, ov::element::f32, out);
}

std::shared_ptr<ov::Node> VerifyAttention::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    return std::make_shared<VerifyAttention>(inputs, *this);
}

bool VerifyAttention::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("kv_heads", kv_heads_);
    visitor.on_attribute("k_size", k_size_);
    visitor.on_attribute("v_size", v_size_);
    visitor.on_attribute("scale", scale_);
    visitor.on_attribute("sliding_window", sliding_window_);
    return true;
}

bool VerifyAttention::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    check_tensor(name, inputs, query, "query", ov::element::f32, {-1, -1});
    const ov::Shape rows = inputs[query].get_shape();
    VerifyCall call{};
    call.keys = view_cache(name, "key_cache", inputs[key_cache], kv_heads_, k_size_);
    call.values = view_cache(name, "value_cache", inputs[value_cache], kv_heads_, v_size_);
    call.group = rows[1] / (call.keys.heads * call.keys.size);
    call.scale = scale_;
    call.window = static_cast<std::int32_t>(sliding_window_);
    const ov::Shape out_shape{rows[0], call.keys.heads * call.group * call.values.size};
    if (call.group == 0 || rows[1] % (call.keys.heads * call.keys.size) != 0)
        fail(name, "query has rows of " + std::to_string(rows[1]) +
                       " values, expected a multiple of kv_heads * k_size");
    if (inputs[attention].get_shape() != out_shape)
        fail(name, "attention holds " + std::to_string(inputs[attention].get_size()) + " values, expected [" +
                       std::to_string(out_shape[0]) + ", " + std::to_string(out_shape[1]) + "]");
    const Sequences sequences =
        view_sequences(name, "verify_past_lens", "verify_block_indices", rows[0], inputs[subsequence_begins],
                       inputs[past_lens], inputs[block_indices], inputs[block_indices_begins]);
    const Selection selection =
        view_selection(inputs[selected_blocks], inputs[selected_counts], call.keys.heads, sequences);

    call.sinks = optional_input<float>(inputs[sinks], "sinks", call.keys.heads * call.group, "no sink");
    const Parents tree = optional_input<std::int32_t>(inputs[parents], "verify_parents", rows[0], "a chain");

    const VerifyKernels& kernels = OVSPEC_KERNELS(verify_kernels);
    auto workspace = workspaces().take();
    workspace->plan.build(call, kernels, sequences, selection, tree,
                          static_cast<std::size_t>(tbb::this_task_arena::max_concurrency()));
    outputs[0].set_shape(out_shape);
    call.query = inputs[query].data<const float>();
    call.output = outputs[0].data<float>();
    run(*workspace, call, kernels, inputs[attention].data<const float>());
    return true;
}

} // namespace ovspec
