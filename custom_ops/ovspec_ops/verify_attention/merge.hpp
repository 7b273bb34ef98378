// Partial results of a head's chunks become its part of the output, in the order of the chunks. A chunk that
// a row sees nothing of adds exact zeros.
#pragma once

#include "verify_attention/geometry.hpp"

namespace ovspec::OVSPEC_ISA::merge {

// Maxima of every chunk become the factors by which its output counts; rows are handled a vector at a time.
static void weigh_chunks(const VerifyCall& call, const VerifyHead& head, const Geometry& g) {
    for (std::size_t r = 0; r < g.padded; r += lanes) {
        Vec sink = splat(minus_infinity);
        for (std::size_t i = 0; call.sinks && i < lanes; i++)
            sink[i] = call.sinks[head.head * call.group + (r + i) % call.group];
        Vec seen = splat(no_maximum);
        for (std::size_t c = 0; c < head.chunks; c++)
            seen = max(load(Partial(g, call, head, c).maxima + r), seen);
        const Vec best = max(sink, seen);
        // A row sees itself. Without any score its query is NaN, and so is its output, sink or not.
        const IVec has_scores = seen > splat(no_maximum);
        Vec total = (Vec)((IVec)exp_nonpositive(sink - best) | ~has_scores);
        for (std::size_t c = 0; c < head.chunks; c++) {
            const Partial part(g, call, head, c);
            const Vec weight = exp_nonpositive(load(part.maxima + r) - best);
            total = fused(weight, load(part.sums + r), total);
            store(part.maxima + r, weight);
        }
        for (std::size_t c = 0; c < head.chunks; c++) {
            float* weight = Partial(g, call, head, c).maxima + r;
            store(weight, load(weight) / total);
        }
    }
}

static void merge_rows(const VerifyCall& call, const VerifyHead& head, const Geometry& g) {
    const Partial sum(g, call, head, 0);
    for (std::size_t c = 0; c < head.chunks; c++) {
        const Partial part(g, call, head, c);
        for (std::size_t r = 0; r < g.rows; r++)
            for (std::size_t d = 0; d < g.value_stride; d += lanes) {
                float* at = sum.out + r * g.value_stride + d;
                const Vec x = load(part.out + r * g.value_stride + d);
                store(at, fused(x, splat(part.maxima[r]), c == 0 ? Vec{} : load(at)));
            }
    }
}

static void merge_groups(const VerifyCall& call, const VerifyHead& head, const Geometry& g) {
    const std::size_t size = call.values.size;
    const Partial sum(g, call, head, 0);
    for (std::size_t c = 0; c < head.chunks; c++) {
        const Partial part(g, call, head, c);
        for (std::size_t first = 0; first < g.grouped; first += g.unit) {
            const std::size_t width = g.width(first), floats = width * size;
            const std::size_t vectors = larger(1, width / lanes);
            for (std::size_t v = 0; v < vectors; v++) {
                Vec weight = load(part.maxima + first + v * lanes);
                if (width < lanes) // a vector holds two channels
                    __builtin_memcpy((float*)&weight + lanes / 2, &weight, sizeof(Vec) / 2);
                for (std::size_t at = first * size + v * lanes; at < first * size + floats;
                     at += vectors * lanes) {
                    const Vec x = load(part.out + at);
                    store(sum.out + at, fused(x, weight, c == 0 ? Vec{} : load(sum.out + at)));
                }
            }
        }
    }
}

static void write_output(const VerifyCall& call, const VerifyHead& head, const Geometry& g) {
    const std::size_t size = call.values.size, row_floats = call.values.heads * call.group * size;
    const Partial sum(g, call, head, 0);
    float* to = call.output + head.sequence->first_row * row_floats + head.head * call.group * size;
    for (std::size_t r = 0; r < g.rows; r++) {
        float* row = to + r / call.group * row_floats + r % call.group * size;
        if (g.row_major) {
            __builtin_memcpy(row, sum.out + r * g.value_stride, size * sizeof(float));
            continue;
        }
        const std::size_t first = r / g.unit * g.unit, width = g.width(first);
        const float* from = sum.out + first * size + (r - first);
        for (std::size_t d = 0; d < size; d++)
            row[d] = from[d * width];
    }
}

} // namespace ovspec::OVSPEC_ISA::merge
