// The instruction set whose kernels run: chosen once per process, from the processor or from OVSPEC_ISA.
#pragma once

#include <string>

#include "ovspec_isas.hpp"

namespace ovspec {

// Instruction sets of this build, best first; CMakeLists.txt lists and explains them.
#define OVSPEC_ENUMERATOR(isa, ...) isa,
enum class Isa { OVSPEC_ISAS(OVSPEC_ENUMERATOR) };
#undef OVSPEC_ENUMERATOR

const char* isa_name(Isa isa);

// Names of the instruction sets that this processor runs, best first, separated by commas: those that ship,
// or those that only tests use.
std::string available_isas(bool for_tests = false);

// The one in use. The first call reads OVSPEC_ISA and throws std::runtime_error where it names an unknown or
// unsupported one.
Isa active_isa();

// Throws std::runtime_error where `name` is unknown or unsupported. For tests and comparisons: a running
// inference may use both sets.
void set_active_isa(const std::string& name);

} // namespace ovspec
