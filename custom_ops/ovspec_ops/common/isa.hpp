// Which compiled kernel runs: chosen once per process, from the processor or from OVSPEC_ISA.
#pragma once

#include <string>
#include <vector>

namespace ovspec {

enum class Isa {
    plain,      // baseline instructions of the target, 4 lanes
    avx2,       // AVX2 + FMA + F16C, 8 lanes
    avx2vnni,   // avx2 and AVX-VNNI
    avx512,     // AVX-512 F/BW/DQ/VL, 16 lanes
    avx512vnni, // avx512 and AVX-512 VNNI
    amx,        // avx512vnni and AMX tiles of bytes
    avx2x16,    // tests only: the 16-lane kernels lowered to AVX2
    avx2dot,    // tests only: avx2vnni with its dot product spelled out in AVX2
};

const char* isa_name(Isa isa);

// Their names, separated by commas.
std::string available_list();

// Instruction sets that this build holds and this processor runs, best first; without the test-only one.
std::vector<Isa> available_isas();

// The one in use. The first call reads OVSPEC_ISA and throws std::runtime_error where it names an unknown or
// unsupported one.
Isa active_isa();

// For tests: throws std::runtime_error where `name` is unknown or unsupported.
void set_active_isa(const std::string& name);

} // namespace ovspec
