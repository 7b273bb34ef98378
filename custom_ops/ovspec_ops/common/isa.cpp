#include "common/isa.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace ovspec {
namespace {

constexpr int unset = -1;
std::atomic<int> active{unset};

bool processor_runs(Isa isa) {
    switch (isa) {
    case Isa::plain:
        return true;
#ifdef OVSPEC_X86_KERNELS
    case Isa::avx2:
    case Isa::avx2x16:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    case Isa::avx512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
    default:
        return false;
    }
}

Isa parse(const std::string& name, const char* source) {
    for (Isa isa : {Isa::plain, Isa::avx2, Isa::avx512, Isa::avx2x16}) {
        if (name != isa_name(isa))
            continue;
        if (!processor_runs(isa))
            throw std::runtime_error(
                std::string(source) + " is '" + name +
                "', which this processor does not support; available: " + available_list());
        return isa;
    }
    throw std::runtime_error(std::string(source) + " is '" + name +
                             "', which is no instruction set of ovspec_ops; available: " + available_list());
}

} // namespace

const char* isa_name(Isa isa) {
    switch (isa) {
    case Isa::plain:
        return "plain";
    case Isa::avx2:
        return "avx2";
    case Isa::avx512:
        return "avx512";
    case Isa::avx2x16:
        return "avx2x16";
    }
    return "unknown";
}

std::vector<Isa> available_isas() {
    std::vector<Isa> isas;
    for (Isa isa : {Isa::avx512, Isa::avx2, Isa::plain})
        if (processor_runs(isa))
            isas.push_back(isa);
    return isas;
}

std::string available_list() {
    std::string names;
    for (Isa isa : available_isas())
        names += (names.empty() ? "" : ",") + std::string(isa_name(isa));
    return names;
}

Isa active_isa() {
    const int known = active.load(std::memory_order_relaxed);
    if (known != unset)
        return static_cast<Isa>(known);
    const char* forced = std::getenv("OVSPEC_ISA");
    const Isa isa = forced && *forced ? parse(forced, "OVSPEC_ISA") : available_isas().front();
    active.store(static_cast<int>(isa), std::memory_order_relaxed);
    return isa;
}

void set_active_isa(const std::string& name) {
    active.store(static_cast<int>(parse(name, "instruction set")), std::memory_order_relaxed);
}

} // namespace ovspec
