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

// Whether the processor has an instruction set; named as the sets in CMakeLists.txt are.
struct Processor {
    static bool plain() { return true; }
#ifdef OVSPEC_X86_KERNELS
    static bool avx2() {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("f16c");
    }
    static bool avx2vnni() { return avx2() && (cpuid(7, 1).eax >> 4 & 1); } // GCC 14 knows its name
    static bool avx512() {
        return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    }
    static bool avx512vnni() { return avx512() && __builtin_cpu_supports("avx512vnni"); }
    static bool amx() {
        static const bool runs = avx512vnni() && (cpuid(7, 0).edx >> 24 & 3) == 3 && may_use_tiles();
        return runs;
    }

private:
    struct Registers {
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    };

    static Registers cpuid(unsigned leaf, unsigned subleaf) {
        Registers r;
        __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
        return r;
    }

    // Linux keeps the state of AMX tiles only for processes that ask for it.
    static bool may_use_tiles() {
#ifdef __linux__
        constexpr long ask_for_state = 0x1023, tile_data = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return syscall(SYS_arch_prctl, ask_for_state, tile_data) == 0;
#else
        return false;
#endif
    }
#endif
};

struct Entry {
    const char* name;
    bool (*runs)();
    bool for_tests;
};

#define OVSPEC_ENTRY(isa, needs, for_tests, ...) {#isa, Processor::needs, for_tests},
constexpr Entry entries[] = {OVSPEC_ISAS(OVSPEC_ENTRY)};
#undef OVSPEC_ENTRY

constexpr int unset = -1;
std::atomic<int> active{unset};

int parse(const std::string& name, const char* source) {
    const std::string found = std::string(source) + " is '" + name + "', which ";
    for (const Entry& entry : entries) {
        if (name != entry.name)
            continue;
        if (!entry.runs())
            throw std::runtime_error(found +
                                     "this processor does not support; available: " + available_isas());
        return static_cast<int>(&entry - entries);
    }
    throw std::runtime_error(found + "is no instruction set of ovspec_ops; available: " + available_isas());
}

int best() {
    int index = 0;
    while (entries[index].for_tests || !entries[index].runs())
        index++; // ends with plain, which every processor runs
    return index;
}

} // namespace

const char* isa_name(Isa isa) {
    return entries[static_cast<int>(isa)].name;
}

std::string available_isas(bool for_tests) {
    std::string names;
    for (const Entry& entry : entries)
        if (entry.for_tests == for_tests && entry.runs())
            names += (names.empty() ? "" : ",") + std::string(entry.name);
    return names;
}

Isa active_isa() {
    const int known = active.load(std::memory_order_relaxed);
    if (known != unset)
        return static_cast<Isa>(known);
    const char* forced = std::getenv("OVSPEC_ISA");
    const int isa = forced && *forced ? parse(forced, "OVSPEC_ISA") : best();
    active.store(isa, std::memory_order_relaxed);
    return static_cast<Isa>(isa);
}

void set_active_isa(const std::string& name) {
    active.store(parse(name, "instruction set"), std::memory_order_relaxed);
}

} // namespace ovspec
