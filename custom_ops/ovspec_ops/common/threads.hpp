// The threads that an operation computes with.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/parallel.hpp"

namespace ovspec {

constexpr std::int64_t most_threads = 256;

// Threads that all operations of a process share, one operation at a time. They are never destroyed, as
// plugin threads may outlive static objects.
struct SharedThreads {
    explicit SharedThreads(int count) : arena(count) {}

    Arena arena;
    std::atomic<bool> busy{false};

    // So many, as the attribute of operation `op` says.
    static SharedThreads& of(const char* op, std::int64_t count);
};

// body() on the threads of the caller's arena, or with `threads` shared ones, if no other operation has them
// at the moment. With a stream of one thread the plugin's own nodes wait for nobody, and the operations have
// more. After an operation the shared threads stay awake for the next one.
template <class Body> void with_threads(const char* op, std::int64_t threads, const Body& body) {
    if (threads == 0)
        return body();
    SharedThreads& shared = SharedThreads::of(op, threads);
    if (shared.busy.exchange(true))
        return body();
    struct Release {
        std::atomic<bool>& busy;
        ~Release() { busy = false; }
    } const release{shared.busy};
    shared.arena.execute([&] {
        const ThreadsAwake awake;
        body();
    });
}

} // namespace ovspec
