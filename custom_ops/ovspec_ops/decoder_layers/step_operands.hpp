// What the steps of a program take and make.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "common/fail.hpp"
#include "common/parallel.hpp"
#include "common/tensors.hpp"
#include "decoder_layers/steps.hpp"
#include "key_summary/layout.hpp"

namespace ovspec {

constexpr const char* layers_op = "DecoderLayers";

// Weights in an input u8.
struct WeightsOf {
    std::size_t input, first, count;

    const std::uint8_t* in(const LayersPass& pass) const {
        const LayersPass::Span& slab = pass.spans[input];
        if (slab.size < count || slab.size - count < first)
            fail(layers_op, "input ", input, " holds ", slab.size, " bytes, fewer than the ", count,
                 " of a step's weights from byte ", first, " on");
        return slab.data + first;
    }
};

// Number `entry` of a table of caches: 64 bits each, first how many blocks each cache has, then addresses. It
// is of bytes, because the plugin makes i32 of i64.
inline std::uint64_t entry_of(const LayersPass& pass, std::size_t input, std::size_t entry) {
    const LayersPass::Span& table = pass.spans[input];
    std::uint64_t value;
    if (table.size / sizeof(value) < entry + 1)
        fail(layers_op, "input ", input, " holds ", table.size, " bytes, fewer than the ",
             (entry + 1) * sizeof(value), " that number ", entry, " needs");
    std::memcpy(&value, table.data + entry * sizeof(value), sizeof(value));
    return value;
}

// A cache: an input, or blocks at an address.
struct CacheOf {
    bool in_table;
    std::size_t input, entry, heads, size;
    bool by_token; // in a table: u8 by token, else f32

    CacheView in(const LayersPass& pass, const char* what) const {
        if (!in_table)
            return view_cache(layers_op, what, pass.inputs[input], static_cast<std::int64_t>(heads),
                              static_cast<std::int64_t>(size));
        CacheView view;
        view.data = reinterpret_cast<const std::uint8_t*>(entry_of(pass, input, 1 + entry));
        view.format = by_token ? CacheFormat::u8_token : CacheFormat::f32;
        view.blocks = view.data ? entry_of(pass, input, 0) : 0;
        view.heads = heads;
        view.size = size;
        view.row_bytes = by_token ? size + 2 * sizeof(float) : size * sizeof(float);
        view.block_bytes = block_size * view.row_bytes;
        return view;
    }
};

// Summaries of keys: an input, or at an address.
struct SummariesOf {
    bool in_table;
    std::size_t input, entry, block_bytes;

    std::uint8_t* in(const LayersPass& pass) const {
        if (in_table)
            return reinterpret_cast<std::uint8_t*>(entry_of(pass, input, 1 + entry));
        return const_cast<std::uint8_t*>(pass.spans[input].data);
    }
    std::size_t blocks(const LayersPass& pass) const {
        if (in_table)
            return in(pass) ? entry_of(pass, input, 0) : 0;
        return pass.spans[input].size / block_bytes;
    }
};

// The operands of a step, checked as they are taken.
class Operands {
public:
    Operands(const ProgramText& program, const StepText& step, std::size_t inputs, std::size_t outputs)
        : program_(program), step_(step) {
        if (step.operands.size() != inputs || (outputs && step.outputs.size() != outputs))
            fail(layers_op, "the line '", step.line, "' has ", step.operands.size(), " operands and ",
                 step.outputs.size(), " outputs, expected ", inputs, " and ", outputs);
    }

    std::size_t rows(std::size_t i) const { return of(i, Operand::rows, "rows"); }
    // Operand `i`, weights of so many bytes.
    WeightsOf weights(std::size_t i, std::size_t bytes) const {
        return {of(i, Operand::weights, "weights"), step_.operands[i].first, bytes};
    }
    std::size_t input(std::size_t i) const { return of(i, Operand::input, "an input"); }
    // Operand `i`, the cache of heads of a size; of a table with the setting cache_type.
    CacheOf cache(std::size_t i, const char* size) const {
        const bool in_table = step_.operands[i].kind == Operand::entry;
        const std::size_t index = in_table ? step_.operands[i].index : input(i);
        check_kv_heads(layers_op, step_.whole("kv_heads"));
        check_head_size(layers_op, size, step_.whole(size));
        const std::string type = in_table ? step_.word("cache_type") : "u8";
        if (type != "u8" && type != "f32")
            fail(layers_op, "cache_type is '", type, "' in the line '", step_.line, "', expected u8 or f32");
        return {in_table,
                index,
                step_.operands[i].first,
                static_cast<std::size_t>(step_.whole("kv_heads")),
                static_cast<std::size_t>(step_.whole(size)),
                type == "u8"};
    }
    // Operand `i`, the summaries of those caches.
    SummariesOf summaries(std::size_t i) const {
        const auto heads = static_cast<std::size_t>(step_.whole("kv_heads"));
        const std::size_t bytes = summary_bytes(static_cast<std::size_t>(step_.whole("k_size")));
        const bool in_table = step_.operands[i].kind == Operand::entry;
        return {in_table, in_table ? step_.operands[i].index : input(i), step_.operands[i].first,
                heads * bytes};
    }
    std::size_t width(std::size_t i) const { return program_.rows[rows(i)].width; }
    std::size_t out(std::size_t i) const {
        if (step_.outputs[i].kind != Operand::rows)
            fail(layers_op, "output ", i, " of the line '", step_.line, "' is not rows: expected NAME:WIDTH");
        return step_.outputs[i].index;
    }
    std::size_t out_width(std::size_t i) const { return program_.rows[out(i)].width; }

    // Output `i`, a table.
    std::size_t out_table(std::size_t i) const {
        if (step_.outputs[i].kind != Operand::table)
            fail(layers_op, "output ", i, " of the line '", step_.line, "' is no table of i32");
        return step_.outputs[i].index;
    }
    const Operand& operand(std::size_t i) const { return step_.operands[i]; }

    void same_width(std::size_t a, std::size_t b) const {
        if (a != b)
            fail(layers_op, "the line '", step_.line, "' joins rows of ", a, " and ", b, " values");
    }

private:
    std::size_t of(std::size_t i, Operand::Kind kind, const char* what) const {
        if (step_.operands[i].kind != kind)
            fail(layers_op, "operand ", i, " of the line '", step_.line, "' is not ", what);
        return step_.operands[i].index;
    }

    const ProgramText& program_;
    const StepText& step_;
};

inline ov::Tensor rows_tensor(const LayersPass& pass, std::size_t index, std::size_t width) {
    return {ov::element::f32, ov::Shape{pass.rows, width}, pass.at[index]};
}

// What a step hands to an operation as a tensor.
struct TensorOf {
    Operand::Kind kind;
    std::size_t index, width = 0; // width: of rows

    static TensorOf of(const ProgramText& program, const Operand& operand) {
        if (operand.kind == Operand::weights || operand.kind == Operand::entry)
            fail(layers_op, "an operation takes no part of the input ", program.inputs[operand.index]);
        return {operand.kind, operand.index,
                operand.kind == Operand::rows ? program.rows[operand.index].width : 0};
    }

    // Of what is a tensor; null for nothing.
    const ov::Tensor* at(const LayersPass& pass) const {
        return kind == Operand::table   ? pass.tables[index]
               : kind == Operand::input ? &pass.inputs[index]
                                        : nullptr;
    }

    ov::Tensor in(const LayersPass& pass) const {
        switch (kind) {
        case Operand::rows:
            if (width == 0)
                return ov::Tensor(ov::element::f32, {pass.rows, 0});
            return rows_tensor(pass, index, width);
        case Operand::table:
            return *pass.tables[index];
        case Operand::input:
            return pass.inputs[index];
        default:
            return ov::Tensor(ov::element::u8, {0});
        }
    }
};

// each(row) for all rows of a pass.
template <class Each> void each_row(const LayersPass& pass, std::size_t width, const Each& each) {
    parallel_items(pass.rows, 4 * pass.rows * width, each);
}

} // namespace ovspec
