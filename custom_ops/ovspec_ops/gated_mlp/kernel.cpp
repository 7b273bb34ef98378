#include "gated_mlp/kernel.hpp"

#include "common/simd.hpp"
#include "gated_mlp/activation.hpp"
#include "gated_mlp/number_columns.hpp"
#include "gated_mlp/number_rows.hpp"
#ifdef OVSPEC_DOT
#include "gated_mlp/integer_columns.hpp"
#include "gated_mlp/integer_rows.hpp"
#endif
#ifdef OVSPEC_BYTES
#include "gated_mlp/byte_columns.hpp"
#include "gated_mlp/byte_rows.hpp"
#endif
#ifdef OVSPEC_AMX
#include "gated_mlp/tile_columns.hpp"
#include "gated_mlp/tile_rows.hpp"
#endif

namespace ovspec::OVSPEC_ISA {
namespace {

// Bytes of packed rows that stay in the L1 cache while weights stream through it.
[[maybe_unused]] constexpr std::size_t cached_bytes = 24 * 1024;

OVSPEC_INLINE bool in_integers([[maybe_unused]] WeightFormat format) {
#ifdef OVSPEC_DOT
    return format == WeightFormat::u8 || format == WeightFormat::u4;
#else
    return false;
#endif
}

OVSPEC_INLINE bool in_bytes([[maybe_unused]] const ChannelMatrix& matrix) {
#ifdef OVSPEC_BYTES
    return matrix.row_bits == 8 && in_integers(matrix.format);
#else
    return false;
#endif
}

// Fewer rows than this cost more in tiles than in vectors.
[[maybe_unused]] constexpr std::size_t least_tile_rows = 3;

// Bytes of one row in a block, where rows are packed one by one.
OVSPEC_INLINE std::size_t row_bytes(const ChannelMatrix& matrix) {
#ifdef OVSPEC_BYTES
    if (in_bytes(matrix))
        return byte_rows::packed_bytes(matrix);
#endif
#ifdef OVSPEC_DOT
    if (in_integers(matrix.format))
        return integer_rows::packed_bytes(matrix);
#endif
    return number_rows::packed_bytes(matrix);
}

std::size_t packed_bytes(const ChannelMatrix& matrix) {
#ifdef OVSPEC_AMX
    if (tile_rows::serves(matrix))
        return tile_rows::BlockLayout(matrix).bytes;
#endif
    return row_block * row_bytes(matrix);
}

void pack(const ChannelMatrix& matrix, const float* const* values, std::size_t rows, std::uint8_t* packed) {
#ifdef OVSPEC_AMX
    if (tile_rows::serves(matrix))
        return tile_rows::pack(matrix, values, rows, packed);
#endif
    for (std::size_t r = 0; r < rows; r++) {
        std::uint8_t* to = packed + r * row_bytes(matrix);
#ifdef OVSPEC_BYTES
        if (in_bytes(matrix)) {
            byte_rows::pack(matrix, values[r], to);
            continue;
        }
#endif
#ifdef OVSPEC_DOT
        if (in_integers(matrix.format)) {
            integer_rows::pack(matrix, values[r], to);
            continue;
        }
#endif
        number_rows::pack(matrix, values[r], to);
    }
}

#ifdef OVSPEC_DOT
struct WideRows {
    static constexpr std::size_t tile_rows = integer_rows::tile_rows;
    static constexpr std::size_t tile_channels = integer_rows::tile_channels;
    static constexpr std::size_t ahead = 1; // tiles

    template <WeightFormat format, std::size_t N, std::size_t R, class... Arguments>
    static OVSPEC_INLINE_MEMBER void tile(Arguments&&... arguments) {
        integer_rows::tile<format, N, R>(arguments...);
    }
};

#ifdef OVSPEC_BYTES
struct ByteRows {
    static constexpr std::size_t tile_rows = byte_rows::tile_rows;
    static constexpr std::size_t tile_channels = byte_rows::tile_channels;
    static constexpr std::size_t ahead = 4;

    template <WeightFormat format, std::size_t N, std::size_t R, class... Arguments>
    static OVSPEC_INLINE_MEMBER void tile(Arguments&&... arguments) {
        byte_rows::tile<format, N, R>(arguments...);
    }
};
#endif

// Products of all rows with N channels; prefetches the channels `next` meanwhile.
template <class Rows, WeightFormat format, std::size_t N>
void channels_of(const ChannelMatrix& m, const std::uint32_t* channels, const std::uint32_t* next,
                 const std::uint8_t* packed, std::size_t bytes, std::size_t row_count, float* y,
                 std::size_t stride) {
    constexpr std::size_t most = Rows::tile_rows;
    const std::uint8_t *weights[N], *ahead[N];
    for (std::size_t n = 0; n < N; n++) {
        weights[n] = m.data + channels[n] * m.row_bytes;
        ahead[n] = m.data + next[n] * m.row_bytes;
    }
    const std::uint8_t* rows[most];
    float dots[most * N];
    for (std::size_t r = 0; r < row_count;) {
        const std::size_t left = row_count - r;
        for (std::size_t i = 0; i < most && i < left; i++)
            rows[i] = packed + (r + i) * bytes;
        const std::uint8_t* const* asked = r == 0 ? ahead : weights;
        const std::size_t some =
            take_rows<most>(left, r, [&](auto R, std::size_t) __attribute__((always_inline)) {
                Rows::template tile<format, N, R>(m, channels, weights, asked, rows, dots);
            });
        for (std::size_t i = 0; i < some; i++)
            for (std::size_t n = 0; n < N; n++)
                y[(r + i) * stride + n] = dots[i * N + n];
        r += some;
    }
}

template <class Rows, WeightFormat format>
void project_format(const ChannelMatrix& m, const ChannelSpan& span, const std::uint8_t* packed,
                    std::size_t row_count, float* y, std::size_t stride) {
    constexpr std::size_t step = Rows::tile_channels;
    const std::uint32_t* channels = span.channels;
    const std::size_t bytes = row_bytes(m);
    const std::size_t tiles = cached_bytes / bytes / Rows::tile_rows;
    const std::size_t block = (tiles > 1 ? tiles : 1) * Rows::tile_rows;
    const auto later = [&](std::size_t n) {
        const std::size_t at = n + Rows::ahead * step;
        return at + step <= span.known ? at : n;
    };
    for (std::size_t r = 0; r < row_count; r += block) {
        const std::size_t some = row_count - r < block ? row_count - r : block;
        float* to = y + r * stride;
        std::size_t n = 0;
        for (; n + step <= span.count; n += step)
            channels_of<Rows, format, step>(m, channels + n, channels + later(n), packed + r * bytes, bytes,
                                            some, to + n, stride);
        for (; n < span.count; n++)
            channels_of<Rows, format, 1>(m, channels + n, channels + n, packed + r * bytes, bytes, some,
                                         to + n, stride);
    }
}

template <class Rows>
void project_integers(const ChannelMatrix& m, const ChannelSpan& span, const std::uint8_t* packed,
                      std::size_t row_count, float* y, std::size_t stride) {
    if (m.format == WeightFormat::u8)
        project_format<Rows, WeightFormat::u8>(m, span, packed, row_count, y, stride);
    else
        project_format<Rows, WeightFormat::u4>(m, span, packed, row_count, y, stride);
}
#endif

std::size_t scratch_floats(const ChannelMatrix& matrix) {
#ifdef OVSPEC_AMX
    if (tile_rows::serves(matrix))
        return tile_rows::scratch_bytes(matrix) / sizeof(float) + 1;
#endif
    return in_integers(matrix.format) ? 0 : number_rows::scratch_floats;
}

void project(const ChannelMatrix& matrix, const ChannelSpan& span, const std::uint8_t* packed,
             std::size_t rows, float* y, std::size_t stride, float* scratch) {
#ifdef OVSPEC_AMX
    // For any number of rows: vectors add in another order, and a row's bits must not depend on the number of
    // rows.
    if (tile_rows::serves(matrix))
        return tile_rows::project(matrix, span, packed, rows, y, stride, scratch);
#endif
#ifdef OVSPEC_BYTES
    if (in_bytes(matrix))
        return project_integers<ByteRows>(matrix, span, packed, rows, y, stride);
#endif
#ifdef OVSPEC_DOT
    if (in_integers(matrix.format))
        return project_integers<WideRows>(matrix, span, packed, rows, y, stride);
#endif
    number_rows::project(matrix, span, packed, rows, y, stride, scratch);
}

std::size_t packed_inner_bytes([[maybe_unused]] const ChannelMatrix& matrix, const ChannelView& view) {
#ifdef OVSPEC_BYTES
    if (in_bytes(matrix))
        return byte_columns::InnerLayout(view).bytes;
#endif
#ifdef OVSPEC_DOT
    if (in_integers(matrix.format))
        return integer_columns::InnerLayout(view).bytes();
#endif
    return float_rows::packed_bytes(view.count);
}

void pack_inner([[maybe_unused]] const ChannelMatrix& matrix, const ChannelView& view, const float* values,
                std::uint8_t* packed) {
#ifdef OVSPEC_BYTES
    if (in_bytes(matrix))
        return byte_columns::pack(view, values, packed);
#endif
#ifdef OVSPEC_DOT
    if (in_integers(matrix.format))
        return integer_columns::pack(view, values, packed);
#endif
    float_rows::pack(values, view.count, packed);
}

void down(const ChannelMatrix& matrix, const ChannelView& view, std::size_t first, std::size_t count,
          const std::uint8_t* const* rows, std::size_t row_count, float* y, std::size_t stride) {
    for (std::size_t r = 0; r < row_count; r++)
        __builtin_memset(y + r * stride, 0, count * sizeof(float));
#ifdef OVSPEC_AMX
    // The sums of both paths are exact integers, so a row's bits do not depend on the choice.
    if (in_integers(matrix.format) && row_count >= least_tile_rows)
        return tile_columns::down(matrix, view, first, count, rows, row_count, y, stride);
#endif
#ifdef OVSPEC_BYTES
    if (in_bytes(matrix))
        return byte_columns::down(matrix, view, first, count, rows, row_count, y, stride);
#endif
#ifdef OVSPEC_DOT
    if (in_integers(matrix.format))
        return integer_columns::down(matrix, view, first, count, rows, row_count, y, stride);
#endif
    number_columns::down(matrix, view, first, count, rows, row_count, y, stride);
}

} // namespace

const GatedMlpKernels gated_mlp_kernels = {
    packed_bytes,
    pack,
    scratch_floats,
    project,
    activation::activate,
    activation::multiply,
    activation::add_largest,
    packed_inner_bytes,
    pack_inner,
    down,
};

} // namespace ovspec::OVSPEC_ISA
