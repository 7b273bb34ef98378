#include "verify_attention/kernel.hpp"

#include "verify_attention/float_path.hpp"
#include "verify_attention/geometry.hpp"
#include "verify_attention/integer_path.hpp"
#include "verify_attention/merge.hpp"

namespace ovspec {
namespace OVSPEC_ISA {
namespace {

std::size_t partial_floats(const VerifyCall& call, std::size_t sequence_rows) {
    return Partial::floats(Geometry(call, sequence_rows), call);
}

std::size_t worker_floats(const VerifyCall& call, std::size_t sequence_rows) {
    const Geometry g(call, sequence_rows);
#ifdef OVSPEC_DOT
    if (g.path == Path::integer)
        return integer_path::Scratch(g, call, nullptr).floats;
#endif
    return float_path::Scratch(g, call, nullptr).floats;
}

template <class Scratch, class Prepare, class Attend>
void attend_with(const VerifyCall& call, const VerifyHead& head, std::size_t chunk, const Geometry& g,
                 VerifyScratch& worker, const Prepare& prepare, const Attend& attend) {
    const Scratch scratch(g, call, worker.floats);
    const Partial partial(g, call, head, chunk);
    if (worker.prepared != &head) {
        prepare(call, head, g, scratch);
        worker.prepared = &head;
    }
    for (std::size_t r = 0; r < g.padded; r++) {
        partial.maxima[r] = no_maximum;
        partial.sums[r] = 0.0f;
    }
    __builtin_memset(partial.out, 0, g.output_floats(call) * sizeof(float));
    const std::size_t begin = head.begin + chunk * head.chunk_blocks;
    attend(call, head, g, partial, scratch, begin, smaller(head.end, begin + head.chunk_blocks));
}

void attend_chunk(const VerifyCall& call, const VerifyHead& head, std::size_t chunk, VerifyScratch& worker) {
    const Geometry g(call, head.sequence->rows);
#ifdef OVSPEC_DOT
    if (g.path == Path::integer)
        return attend_with<integer_path::Scratch>(call, head, chunk, g, worker, integer_path::prepare_queries,
                                                  integer_path::attend);
#endif
    attend_with<float_path::Scratch>(call, head, chunk, g, worker, float_path::prepare_queries,
                                     float_path::attend);
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

const VerifyKernels verify_kernels = {worker_floats, partial_floats, attend_chunk, merge_chunks};

} // namespace OVSPEC_ISA
} // namespace ovspec
