#include "verify_attention/kernel.hpp"

#include "verify_attention/float_path.hpp"
#include "verify_attention/geometry.hpp"
#include "verify_attention/merge.hpp"
#ifdef OVSPEC_DOT
#include "verify_attention/integer_path.hpp"
#endif

namespace ovspec::OVSPEC_ISA {
namespace {

std::size_t partial_floats(const VerifyCall& call, std::size_t sequence_rows) {
    return Partial::floats(Geometry(call, sequence_rows), call);
}

std::size_t shared_floats(const VerifyCall& call, std::size_t sequence_rows) {
    const Geometry g(call, sequence_rows);
#ifdef OVSPEC_DOT
    if (g.path == Path::integer)
        return integer_path::Scratch(g, call, nullptr).floats;
#endif
    return float_path::Scratch(g, call, nullptr).floats;
}

std::size_t head_floats(const VerifyCall& call, std::size_t sequence_rows) {
    const Geometry g(call, sequence_rows);
#ifdef OVSPEC_DOT
    if (g.path == Path::integer)
        return integer_path::HeadScratch(g, call, nullptr).floats;
#endif
    return float_path::HeadScratch(g, call, nullptr).floats;
}

void clear(const Partial& partial, const Geometry& g, const VerifyCall& call) {
    for (std::size_t r = 0; r < g.padded; r++) {
        partial.maxima[r] = no_maximum;
        partial.sums[r] = 0.0f;
    }
    __builtin_memset(partial.out, 0, g.output_floats(call) * sizeof(float));
}

bool finite(const Partial& partial, const Geometry& g, const VerifyCall& call) {
    Vec poison = {};
    for (std::size_t i = 0; i < g.output_floats(call); i += lanes)
        poison = fused(load(partial.out + i), Vec{}, poison);
    return sum(poison) == 0.0f;
}

// All blocks of a chunk. What is not finite reaches rows that do not see it as zero times infinity. That is
// rare, so it is looked for in the output, and the chunk is then passed over again with care.
template <class HeadScratch, class Scratch, class Prepare, class Attend>
void attend_with(const VerifyCall& call, const VerifyItem& item, const Geometry& g, VerifyScratch& worker,
                 const Prepare& prepare, const Attend& attend) {
    const Scratch scratch(g, call, worker.floats);
    const std::size_t own_floats = HeadScratch(g, call, nullptr).floats;
    const auto own = [&](std::size_t h) {
        return HeadScratch(g, call, worker.floats + scratch.floats + h * own_floats);
    };
    for (std::size_t h = 0; h < item.count; h++)
        if (worker.prepared != item.heads)
            prepare(call, item.heads[h], g, own(h), scratch);
    worker.prepared = item.heads;
    const auto pass = [&](bool guarded) {
        for (std::size_t h = 0; h < item.count; h++)
            clear(Partial(g, call, item.heads[h], item.chunk), g, call);
        const VerifyHead& first = item.heads[0];
        const std::size_t end = first.chunk_end(item.chunk);
        for (std::size_t entry = first.chunk_begin(item.chunk), stop; entry < end; entry = stop) {
            stop = smaller(end, round_up(entry + 1, visit_blocks)); // visits begin at fixed entries
            for (std::size_t h = 0; h < item.count; h++) {
                const bool last = h + 1 == item.count;
                const Visit visit{item.heads[h],       entry,  stop, item.heads[last ? 0 : h + 1],
                                  last ? stop : entry, guarded};
                attend(call, visit, g, Partial(g, call, visit.head, item.chunk), own(h), scratch);
            }
        }
    };
    pass(false);
    for (std::size_t h = 0; h < item.count; h++)
        if (!finite(Partial(g, call, item.heads[h], item.chunk), g, call))
            return pass(true);
}

void attend_chunk(const VerifyCall& call, const VerifyItem& item, VerifyScratch& worker) {
    const Geometry g(call, item.heads[0].sequence->rows);
#ifdef OVSPEC_DOT
    if (g.path == Path::integer) {
        using namespace integer_path;
#ifdef OVSPEC_AMX
        const tiles::Session session(call.keys.size);
#endif
        return attend_with<HeadScratch, Scratch>(call, item, g, worker, g.few ? prepare_few : prepare_queries,
                                                 attend);
    }
#endif
    using namespace float_path;
    attend_with<HeadScratch, Scratch>(call, item, g, worker, prepare_queries, attend);
}

void merge_chunks(const VerifyCall& call, const VerifyHead& head) {
    const Geometry g(call, head.sequence->rows);
    merge::weigh_chunks(call, head, g);
    if (g.row_major)
        merge::merge_rows(call, head, g);
    else
        merge::merge_groups(call, head, g);
    merge::write_output(call, head, g);
}

} // namespace

const VerifyKernels verify_kernels = {shared_floats, head_floats, partial_floats, attend_chunk, merge_chunks};

} // namespace ovspec::OVSPEC_ISA
