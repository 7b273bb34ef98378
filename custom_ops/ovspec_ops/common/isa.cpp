#include "common/isa.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#ifdef OVSPEC_X86_KERNELS
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace ovspec {
namespace {

constexpr int unset = -1;
std::atomic<int> active{unset};

// best first
constexpr Isa all[] = {Isa::amx,  Isa::avx512vnni, Isa::avx512,  Isa::avx2vnni,
                       Isa::avx2, Isa::plain,      Isa::avx2x16, Isa::avx2dot};

#ifdef OVSPEC_X86_KERNELS
// __builtin_cpu_supports does not know it before GCC 14. Its registers are those of AVX2.
bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

#ifdef OVSPEC_X86_KERNELS
// Linux keeps the state of AMX tiles only for processes that ask for it.
bool may_use_tiles() {
    static const bool allowed = [] {
#ifdef __linux__
        constexpr long ask_for_state = 0x1023, tile_data = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        unsigned a = 0, b = 0, c = 0, d = 0;
        const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) && (d >> 25 & 1);
        return tiles && syscall(SYS_arch_prctl, ask_for_state, tile_data) == 0;
#else
        return false;
#endif
    }();
    return allowed;
}
#endif

bool processor_runs(Isa isa) {
    switch (isa) {
    case Isa::plain:
        return true;
#ifdef OVSPEC_X86_KERNELS
    case Isa::avx2:
    case Isa::avx2x16:
    case Isa::avx2dot:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    case Isa::avx2vnni:
        return processor_runs(Isa::avx2) && has_avx_vnni();
    case Isa::avx512vnni:
        return processor_runs(Isa::avx512) && __builtin_cpu_supports("avx512vnni");
    case Isa::amx:
        return processor_runs(Isa::avx512vnni) && may_use_tiles();
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
    for (Isa isa : all) {
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
    case Isa::avx2dot:
        return "avx2dot";
    case Isa::avx2vnni:
        return "avx2vnni";
    case Isa::avx512vnni:
        return "avx512vnni";
    case Isa::amx:
        return "amx";
    }
    return "unknown";
}

std::vector<Isa> available_isas() {
    std::vector<Isa> isas;
    for (Isa isa : all)
        if (isa != Isa::avx2x16 && isa != Isa::avx2dot && processor_runs(isa))
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
