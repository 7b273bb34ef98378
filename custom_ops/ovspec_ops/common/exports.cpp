// C functions that the Python loader reads with ctypes. No exception leaves them: a failed call returns null
// or nonzero and leaves its message in ovspec_last_error().
#include "common/faults.hpp"
#include "common/held_calls.hpp"
#include "common/isa.hpp"
#include "common/parallel.hpp"
#include "common/step_times.hpp"

#include <cstdint>
#include <exception>
#include <sstream>
#include <string>

#define OVSPEC_EXPORT extern "C" __attribute__((visibility("default")))

namespace {
thread_local std::string last_error;
thread_local std::string names;
} // namespace

OVSPEC_EXPORT const char* ovspec_openvino_version() {
    return OVSPEC_OPENVINO_VERSION;
}

OVSPEC_EXPORT const char* ovspec_last_error() {
    return last_error.c_str();
}

// How many calls of operations have failed in this process, and why the last one did.
OVSPEC_EXPORT std::uint64_t ovspec_fault_count() {
    return ovspec::Faults::all().count();
}

OVSPEC_EXPORT const char* ovspec_last_fault() {
    names = ovspec::Faults::all().last();
    return names.c_str();
}

OVSPEC_EXPORT const char* ovspec_available_isas() {
    names = ovspec::available_isas();
    return names.c_str();
}

OVSPEC_EXPORT const char* ovspec_isas_for_tests() {
    names = ovspec::available_isas(true);
    return names.c_str();
}

OVSPEC_EXPORT const char* ovspec_active_isa() {
    try {
        return ovspec::isa_name(ovspec::active_isa());
    } catch (const std::exception& error) {
        last_error = error.what();
        return nullptr;
    }
}

OVSPEC_EXPORT int ovspec_set_isa(const char* name) {
    try {
        ovspec::set_active_isa(name);
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 1;
    }
}

// Times of steps from now on.
OVSPEC_EXPORT void ovspec_begin_step_times() {
    ovspec::StepTimes::all().begin();
}

// A line for each kind of step, with its microseconds since the beginning.
OVSPEC_EXPORT const char* ovspec_end_step_times() {
    std::ostringstream lines;
    for (const auto& [kind, microseconds] : ovspec::StepTimes::all().take())
        lines << kind << ' ' << microseconds << '\n';
    names = lines.str();
    return names.c_str();
}

#ifdef OVSPEC_DEVELOPER
// For tests: a call on so many threads, also where there are fewer cores. Returns the most items that threads
// shared in one loop.
OVSPEC_EXPORT std::size_t ovspec_call_on_threads(int threads, void (*call)()) {
    const ovspec::AllowThreads allowed(threads);
    ovspec::most_shared_items = 0;
    ovspec::Arena(threads).execute(call);
    return ovspec::most_shared_items;
}
#endif

#ifdef OVSPEC_STD_THREADS
// For tests: threads of a loop, or of calls at the same time, that count without a lock, which the thread
// sanitizer must find.
OVSPEC_EXPORT std::size_t ovspec_planted_race(int calls) {
    std::size_t count = 0;
    if (calls == 0)
        ovspec::parallel_items(std::size_t{1} << 10, ovspec::serial_work, [&](std::size_t) { ++count; });
    ovspec::HeldCalls::all().hold();
    for (int call = 0; call < calls; ++call)
        ovspec::HeldCalls::all().take([&] { ++count; });
    ovspec::HeldCalls::all().make();
    return count;
}

// For tests: operations that are called from now on are computed by the next ovspec_make_held_calls, all at
// once.
OVSPEC_EXPORT void ovspec_hold_calls() {
    ovspec::HeldCalls::all().hold();
}

OVSPEC_EXPORT void ovspec_make_held_calls() {
    ovspec::HeldCalls::all().make();
}
#endif
