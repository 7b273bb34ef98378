// What the operations share on OpenVINO's side: checks of types and shapes, and caches as CacheView.
#pragma once

#include <string>

#include <openvino/core/node.hpp>
#include <openvino/runtime/tensor.hpp>

#include "common/cache_view.hpp"
#include "common/isa.hpp"
#include "common/sequences.hpp"

namespace ovspec {

// Attributes that every operation has. Head sizes are multiples of 8 up to 1024.
void check_heads(const char* op, std::int64_t kv_heads);
void check_head_size(const char* op, const char* name, std::int64_t size);

// Input `index` is of `type` (or dynamic) and of the rank of `shape`; dimensions of -1 in `shape` are not
// checked.
void check_input(const ov::Node& node, std::size_t index, const char* name, ov::element::Type type,
                 const ov::PartialShape& shape);
void check_input_count(const ov::Node& node, std::size_t count);

// A cache input whose type and shape may still be dynamic: the plugin fixes both when it compiles.
void check_cache_input(const ov::Node& node, std::size_t index, const char* name, std::int64_t kv_heads,
                       std::int64_t size);

// The cache in `tensor`; throws where its precision or layout is not one of CacheFormat.
CacheView view_cache(const char* op, const char* name, const ov::Tensor& tensor, std::int64_t kv_heads,
                     std::int64_t size);

// Sizes of the tensors against each other at run time; `tensors` start at subsequence_begins of the
// operation.
Sequences view_sequences(const char* op, const char* past_name, const char* table_name, std::size_t rows,
                         const ov::Tensor& subsequence_begins, const ov::Tensor& past_lens,
                         const ov::Tensor& block_indices, const ov::Tensor& block_indices_begins);

// The table of `table_of` for the instruction set in use.
#ifdef OVSPEC_X86_KERNELS
#define OVSPEC_KERNELS(table)                                                                                \
    (::ovspec::active_isa() == ::ovspec::Isa::amx          ? ::ovspec::amx::table                            \
     : ::ovspec::active_isa() == ::ovspec::Isa::avx512vnni ? ::ovspec::avx512vnni::table                     \
     : ::ovspec::active_isa() == ::ovspec::Isa::avx512     ? ::ovspec::avx512::table                         \
     : ::ovspec::active_isa() == ::ovspec::Isa::avx2vnni   ? ::ovspec::avx2vnni::table                       \
     : ::ovspec::active_isa() == ::ovspec::Isa::avx2       ? ::ovspec::avx2::table                           \
     : ::ovspec::active_isa() == ::ovspec::Isa::avx2x16    ? ::ovspec::avx2x16::table                        \
     : ::ovspec::active_isa() == ::ovspec::Isa::avx2dot    ? ::ovspec::avx2dot::table                        \
                                                           : ::ovspec::plain::table)
#else
#define OVSPEC_KERNELS(table) (::ovspec::plain::table)
#endif

} // namespace ovspec
