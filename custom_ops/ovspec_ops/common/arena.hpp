// The threads that a loop is divided among: those of the caller's TBB arena, in an operation the CPU plugin's
// stream or shared threads.
//
// The thread sanitizer does not see how TBB, which is not built with it, hands work from thread to thread. In
// its build (OVSPEC_STD_THREADS) a loop starts threads of the standard library instead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <thread>
#include <vector>

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

namespace ovspec {

#ifndef OVSPEC_STD_THREADS

// Threads that a loop of the caller can have.
inline std::size_t threads_here() {
    return static_cast<std::size_t>(tbb::this_task_arena::max_concurrency());
}

// Which of them the caller is, below threads_here().
inline std::size_t thread_here() {
    // Negative on a thread that never entered TBB; it is the only one then.
    return static_cast<std::size_t>(std::max(0, tbb::this_task_arena::current_thread_index()));
}

// body(item) for every item below `count`, on these threads.
template <class Body> void share_items(std::size_t count, const Body& body) {
    tbb::parallel_for(tbb::blocked_range<std::size_t>(0, count),
                      [&](const tbb::blocked_range<std::size_t>& range) {
                          for (std::size_t item = range.begin(); item != range.end(); ++item)
                              body(item);
                      });
}

// body() once for each of these threads, on those that come; the caller is one of them.
template <class Body> void on_each_thread(const Body& body) {
    tbb::parallel_for(
        std::size_t{0}, threads_here(), [&](std::size_t) { body(); }, tbb::simple_partitioner());
}

using Arena = tbb::task_arena;

// As long as it lives, arenas may have so many threads, also where there are fewer cores.
class AllowThreads {
public:
    explicit AllowThreads(int threads)
        : allowed_(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(threads)) {}

private:
    tbb::global_control allowed_;
};

#else

struct ThisThread {
    std::size_t threads = 4, index = 0;
    bool in_loop = false;

    static ThisThread& here() {
        static thread_local ThisThread here;
        return here;
    }
};

inline std::size_t threads_here() {
    return ThisThread::here().threads;
}

inline std::size_t thread_here() {
    return ThisThread::here().index;
}

template <class Body> void share_items(std::size_t count, const Body& body) {
    const std::size_t threads = ThisThread::here().in_loop ? 1 : std::min(threads_here(), count);
    // By turns: a thread that starts late has its items too, next to those of others.
    const auto compute = [&](std::size_t index) {
        ThisThread& here = ThisThread::here();
        const ThisThread before = here;
        if (threads > 1)
            here = {before.threads, index, true};
        for (std::size_t item = index; item < count; item += threads)
            body(item);
        here = before;
    };
    std::vector<std::thread> others;
    for (std::size_t index = 1; index < threads; ++index)
        others.emplace_back(compute, index);
    compute(0);
    for (std::thread& other : others)
        other.join();
}

template <class Body> void on_each_thread(const Body& body) {
    share_items(threads_here(), [&](std::size_t) { body(); });
}

class Arena {
public:
    explicit Arena(int threads) : threads_(static_cast<std::size_t>(threads)) {}

    template <class Body> void execute(const Body& body) {
        ThisThread& here = ThisThread::here();
        const ThisThread before = here;
        here = {threads_, 0, false};
        body();
        here = before;
    }

private:
    std::size_t threads_;
};

struct AllowThreads {
    explicit AllowThreads(int) {}
};

#endif

} // namespace ovspec
