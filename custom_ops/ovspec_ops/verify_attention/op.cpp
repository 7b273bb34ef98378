#include "verify_attention/op.hpp"

#include <algorithm>
#include <array>
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
    tables,
    least_inputs,
    selected_blocks = least_inputs,
    selected_counts,
    sinks,
    most_inputs,
};

// A thread's part of the scratch: a cache line apart, so that threads do not share one.
struct alignas(64) Worker {
    FloatBuffer floats;
    VerifyScratch scratch;
};

// Copies the values of a tensor i32; whether they were others.
bool renew(std::vector<std::int32_t>& copy, const ov::Tensor& tensor) {
    const std::size_t size = tensor.get_size();
    const std::int32_t* data = size ? tensor.data<const std::int32_t>() : nullptr;
    if (copy.size() == size && std::equal(copy.begin(), copy.end(), data))
        return false;
    copy.assign(data, data + size);
    return true;
}

// What a plan is made of. It points into these tables, not into a call's, so that the next call with the same
// has it as it is: mostly the next layer of the pass.
struct PlanSource {
    std::vector<std::int32_t> tables, selected, counts;
    std::array<std::size_t, 13> sizes{};
};

struct Workspace {
    PlanSource source;
    VerifyPlan plan;
    std::vector<std::unique_ptr<Worker>> workers;

    void build_plan(const VerifyCall& call, const VerifyKernels& kernels, const AttentionCall& given);
};

// Of tensors that are not empty.
Selection view_selection(const ov::Tensor& blocks, const ov::Tensor& counts, std::size_t kv_heads,
                         const Sequences& sequences, const PlanSource& source) {
    if (counts.get_shape() != ov::Shape{kv_heads, sequences.count})
        fail(name, "selected_counts holds ", counts.get_size(), " values, expected [", kv_heads, ", ",
             sequences.count, "], or none for dense");
    if (blocks.get_shape() != ov::Shape{kv_heads, sequences.table_size})
        fail(name, "selected_blocks holds ", blocks.get_size(), " values, expected [", kv_heads, ", ",
             sequences.table_size, "]: a column per entry of verify_block_indices");
    return {source.selected.data(), source.counts.data(), sequences.table_size};
}

void check_optional(const char* what, std::size_t size, std::size_t expected, const char* absent) {
    if (size != 0 && size != expected)
        fail(name, what, " holds ", size, " values, expected ", expected, ", or none for ", absent);
}

void check_window(const char* what, std::int64_t window) {
    if (window < 0 || window > std::numeric_limits<std::int32_t>::max())
        fail(name, "attribute ", what, " is ", window, ", expected 0 (none) or a length");
}

void check_types(const ov::element::Type& keys, const ov::element::Type& values) {
    if (keys != values)
        fail(name, "key_cache is of type ", keys, " and value_cache of type ", values,
             ", expected the same type; set KV_CACHE_PRECISION, not one of both");
}

void Workspace::build_plan(const VerifyCall& call, const VerifyKernels& kernels, const AttentionCall& given) {
    const bool selects = given.selected_counts && given.selected_counts->get_size() != 0;
    const auto format = [](const CacheView& cache) { return static_cast<std::size_t>(cache.format); };
    const std::array<std::size_t, 13> sizes{given.rows,
                                            call.keys.heads,
                                            call.group,
                                            call.keys.size,
                                            call.values.size,
                                            format(call.keys),
                                            format(call.values),
                                            std::min(call.keys.blocks, call.values.blocks),
                                            static_cast<std::size_t>(call.window),
                                            static_cast<std::size_t>(call.past_window),
                                            static_cast<std::size_t>(call.causal),
                                            threads_here(),
                                            static_cast<std::size_t>(active_isa())};
    bool others = renew(source.tables, *given.tables) || sizes != source.sizes;
    if (selects) {
        others |= renew(source.selected, *given.selected_blocks);
        others |= renew(source.counts, *given.selected_counts);
    } else {
        others |= !source.counts.empty();
        source.selected.clear();
        source.counts.clear();
    }
    if (!others)
        return;
    source.sizes.fill(0); // until the plan is made
    const auto [sequences, parents] =
        PassTables::view(name, source.tables.data(), source.tables.size(), given.rows);
    Selection selection{};
    if (selects)
        selection = view_selection(*given.selected_blocks, *given.selected_counts, call.keys.heads, sequences,
                                   source);
    plan.build(call, kernels, sequences, selection, parents, threads_here());
    source.sizes = sizes;
}

void run(Workspace& workspace, const VerifyCall& call, const VerifyKernels& kernels,
         const float* attention_rows) {
    VerifyPlan& plan = workspace.plan;
    const std::size_t slots = threads_here();
    while (workspace.workers.size() < slots)
        workspace.workers.push_back(std::make_unique<Worker>());
    for (const auto& worker : workspace.workers)
        worker->scratch.prepared = nullptr;
    const std::size_t row = call.values.heads * call.group * call.values.size;

    parallel_items(plan.copies.size(), plan.work, [&](std::size_t i) {
        const VerifyPlan::Copy& copy = plan.copies[i];
        float* to = call.output + copy.first_row * row;
        if (attention_rows)
            std::memcpy(to, attention_rows + copy.first_row * row, copy.rows * row * sizeof(float));
        else
            std::memset(to, 0, copy.rows * row * sizeof(float));
    });
    for (const VerifyPlan::Wave& wave : plan.waves) {
        parallel_items(wave.last_item - wave.first_item, plan.work, [&](std::size_t i) {
            const VerifyItem& item = plan.items[wave.first_item + i];
            Worker& worker = *workspace.workers.at(thread_here());
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

void VerifyAttention::check_attributes() const {
    check_kv_heads(name, attributes_.kv_heads);
    check_head_size(name, "k_size", attributes_.k_size);
    check_head_size(name, "v_size", attributes_.v_size);
    if (!std::isfinite(attributes_.scale))
        fail(name, "attribute scale is ", attributes_.scale, ", expected a finite number");
    check_window("sliding_window", attributes_.sliding_window);
    check_window("past_window", attributes_.past_window);
    if (attributes_.sliding_window && (attributes_.past_window || !attributes_.causal))
        fail(name, "attribute sliding_window is ", attributes_.sliding_window,
             ", expected 0 beside a past_window, or where causal is false");
}

void VerifyAttention::validate_and_infer_types() {
    check_attributes();
    if (get_input_size() != least_inputs && get_input_size() != most_inputs)
        fail(name, "got ", get_input_size(), " inputs, expected 5 or 8");
    check_input(*this, query, "query", ov::element::f32, {-1, -1});
    check_cache_input(*this, key_cache, "key_cache", attributes_.kv_heads, attributes_.k_size);
    check_cache_input(*this, value_cache, "value_cache", attributes_.kv_heads, attributes_.v_size);
    check_input(*this, attention, "attention", ov::element::f32, {-1, -1});
    check_input(*this, tables, "verify_tables", ov::element::i32, {-1});
    if (get_input_size() == most_inputs) {
        check_input(*this, selected_blocks, "selected_blocks", ov::element::i32, {-1, -1});
        check_input(*this, selected_counts, "selected_counts", ov::element::i32, {-1, -1});
        check_input(*this, sinks, "sinks", ov::element::f32, {-1});
    }

    const auto keys = get_input_element_type(key_cache), values = get_input_element_type(value_cache);
    if (keys.is_static() && values.is_static())
        check_types(keys, values);
    const auto& rows = get_input_partial_shape(query);
    ov::PartialShape out{-1, -1};
    if (rows.rank().is_static()) {
        const std::int64_t unit = attributes_.kv_heads * attributes_.k_size;
        if (rows[1].is_static() && rows[1].get_length() % unit != 0)
            fail(name, "query has rows of ", rows[1].get_length(),
                 " values, expected a multiple of kv_heads * k_size = ", unit);
        out[0] = rows[0];
        if (rows[1].is_static())
            out[1] = rows[1].get_length() / attributes_.k_size * attributes_.v_size;
        const auto& given = get_input_partial_shape(attention);
        const bool empty = given.rank().is_static() && given[1] == 0;
        if (!empty)
            check_input(*this, attention, "attention", ov::element::f32,
                        {-1, out[1].is_static() ? out[1].get_length() : -1});
    }
    set_output_type(0, ov::element::f32, out);
}

void VerifyAttention::compute(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const auto& a = attributes_;
    check_tensor(name, inputs, query, "query", ov::element::f32, {-1, -1});
    check_types(inputs[key_cache].get_element_type(), inputs[value_cache].get_element_type());
    const ov::Shape& rows = inputs[query].get_shape();
    AttentionCall call{};
    call.rows = rows[0];
    call.width = rows[1];
    call.query = inputs[query].data<const float>();
    call.keys = view_cache(name, "key_cache", inputs[key_cache], a.kv_heads, a.k_size);
    call.values = view_cache(name, "value_cache", inputs[value_cache], a.kv_heads, a.v_size);
    call.tables = &inputs[tables];
    if (inputs.size() == most_inputs) {
        call.selected_blocks = &inputs[selected_blocks];
        call.selected_counts = &inputs[selected_counts];
        call.sinks = &inputs[sinks];
    }
    const ov::Shape out_shape{rows[0], rows[1] / call.keys.size * call.values.size};
    check_tensor(name, inputs, attention, "attention", ov::element::f32, {-1, -1});
    const ov::Shape& given = inputs[attention].get_shape();
    if (given != out_shape && given != ov::Shape{rows[0], 0})
        fail(name, "attention holds ", inputs[attention].get_size(), " values, expected [", out_shape[0],
             ", ", out_shape[1], "], or no column");
    call.attention = given[1] == 0 ? nullptr : inputs[attention].data<const float>();
    outputs[0].set_shape(out_shape);
    call.output = outputs[0].data<float>();
    attend(call);
}

void VerifyAttention::attend(const AttentionCall& given) const {
    VerifyCall call{};
    call.keys = given.keys;
    call.values = given.values;
    call.group = given.width / (call.keys.heads * call.keys.size);
    call.scale = attributes_.scale;
    call.window = static_cast<std::int32_t>(attributes_.sliding_window);
    call.past_window = static_cast<std::int32_t>(attributes_.past_window);
    call.causal = attributes_.causal;
    if (call.group == 0 || given.width % (call.keys.heads * call.keys.size) != 0)
        fail(name, "query has rows of ", given.width, " values, expected a multiple of kv_heads * k_size");
    if (given.rows == 0) // whatever the tables
        return;
    if (given.sinks) {
        check_optional("sinks", given.sinks->get_size(), call.keys.heads * call.group, "no sink");
        call.sinks = given.sinks->get_size() ? given.sinks->data<const float>() : nullptr;
    }
    const VerifyKernels& kernels = OVSPEC_KERNELS(verify_kernels);
    auto workspace = Pool<Workspace>::take();
    workspace->build_plan(call, kernels, given);
    call.query = given.query;
    call.output = given.output;
    run(*workspace, call, kernels, given.attention);
}

} // namespace ovspec
