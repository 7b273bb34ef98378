// The threads that an operation computes with.
#pragma once

#include <cstdint>

#include <tbb/task_arena.h>

#include "common/parallel.hpp"

namespace ovspec {

constexpr std::int64_t most_threads = 256;

// The arena of so many threads, as the attribute of operation `op` says. All operations of a process share
// it; it is never destroyed, as plugin threads may outlive static objects.
tbb::task_arena& arena_of(const char* op, std::int64_t threads);

// body() on the threads of the caller's arena, or with `threads` in the arena of so many. With a stream of
// one thread the plugin's own nodes wait for nobody, and the operations have more. After an operation their
// threads stay awake for the next one.
template <class Body> void with_threads(const char* op, std::int64_t threads, const Body& body) {
    if (threads == 0)
        return body();
    arena_of(op, threads).execute([&] {
        const ThreadsAwake awake;
        body();
    });
}

} // namespace ovspec
