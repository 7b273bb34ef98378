// Threads that stay together for many loops: an operation of many steps enters the arena once, not at each.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "common/arena.hpp"

namespace ovspec {

// One thread leads and posts loops; those that have come claim items of them beside it. The leader waits for
// items that were claimed, never for a thread to come.
//
// Each thread has a range of a loop's items of its own, which it claims from the front: items that follow
// each other read weights that do, so what one prefetches the next one uses. A thread whose range is done
// claims from the end of others'.
class Team {
public:
    // The team that the calling thread leads, if it leads one.
    static Team*& here() {
        static thread_local Team* team = nullptr;
        return team;
    }

    // lead() on the calling thread's arena, whose other threads share the loops that it posts. What lead() or
    // an item throws reaches the caller.
    template <class Lead> static void run(const Lead& lead) {
        if (threads_here() == 1 || here())
            return lead();
        Team team;
        std::exception_ptr error;
        std::atomic<bool> led{false};
        on_each_thread([&] {
            if (led.exchange(true))
                return team.join();
            here() = &team;
            try {
                lead();
            } catch (...) {
                error = std::current_exception();
            }
            here() = nullptr;
            team.over_.store(true, std::memory_order_release);
        });
        if (error)
            std::rethrow_exception(error);
    }

    // body(item) for every item below `count`, which is below 2^24.
    template <class Body> void share(std::size_t count, const Body& body) {
        body_ = &body;
        call_ = [](const void* of, std::size_t item) { (*static_cast<const Body*>(of))(item); };
        done_.store(0, std::memory_order_relaxed);
        number_ = (number_ + 1) & 0xffff;
        const std::size_t members = std::min({members_.load(std::memory_order_relaxed), most_ranges, count});
        for (std::size_t m = 0; m < members; m++)
            ranges_[m].left.store(number_ << 48 | m * count / members << 24 | (m + 1) * count / members,
                                  std::memory_order_release);
        posted_.store(number_ << 48 | members, std::memory_order_release);
        help(0, posted_.load(std::memory_order_relaxed), members);
        wait([&] { return done_.load(std::memory_order_acquire) == count; });
        if (error_) {
            const std::exception_ptr error = error_;
            error_ = nullptr;
            std::rethrow_exception(error);
        }
    }

private:
    // Items of a loop that a thread has not claimed: number of the loop, first and last but one: 16, 24 and
    // 24 bits.
    struct alignas(64) Range {
        std::atomic<std::uint64_t> left{0};
    };

    static constexpr std::size_t most_ranges = 64;
    // Others whose items a thread claims once it has done its own; the leader looks at all.
    static constexpr std::size_t others = 3;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    // Spins: steps follow each other within microseconds. Where another thread wants the processor it has it.
    template <class Ready> static void wait(const Ready& ready) {
        for (unsigned tries = 1; !ready(); tries++)
            if (tries % 1024 == 0)
                std::this_thread::yield();
            else
                pause();
    }

    // Claims items of the loop `posted` until none is left: those of range `own`, then those of `more` ranges
    // behind it.
    void help(std::size_t own, std::uint64_t posted, std::size_t more) {
        const std::size_t ranges = posted & 0xffffff;
        std::size_t done = 0;
        for (std::size_t turn = 0; turn < std::min(ranges, more + 1); turn++)
            done += claim(ranges_[(own + turn) % ranges].left, posted >> 48, turn == 0 && own < ranges);
        if (done)
            done_.fetch_add(done, std::memory_order_acq_rel);
    }

    // Computes the items of a range, from its front or its end on; how many.
    std::size_t claim(std::atomic<std::uint64_t>& range, std::uint64_t number, bool front) {
        std::size_t done = 0;
        for (std::uint64_t left = range.load(std::memory_order_acquire);;) {
            const std::size_t first = left >> 24 & 0xffffff, end = left & 0xffffff;
            if (left >> 48 != number || first >= end)
                return done;
            const std::uint64_t rest = front ? left + (std::uint64_t{1} << 24) : left - 1;
            if (!range.compare_exchange_weak(left, rest, std::memory_order_acq_rel))
                continue;
            try {
                call_(body_, front ? first : end - 1);
            } catch (...) {
                const std::lock_guard<std::mutex> lock(mutex_);
                error_ = std::current_exception();
            }
            done++;
            left = range.load(std::memory_order_acquire);
        }
    }

    void join() {
        const std::size_t own = members_.fetch_add(1, std::memory_order_relaxed);
        std::uint64_t seen = 0;
        while (!over_.load(std::memory_order_acquire)) {
            wait([&] {
                return posted_.load(std::memory_order_acquire) != seen ||
                       over_.load(std::memory_order_acquire);
            });
            seen = posted_.load(std::memory_order_acquire);
            help(own, seen, others);
        }
    }

    // Number of the loop, and its ranges.
    alignas(64) std::atomic<std::uint64_t> posted_{0};
    alignas(64) std::atomic<std::size_t> done_{0};
    alignas(64) std::atomic<bool> over_{false};
    std::atomic<std::size_t> members_{1}; // that have come, the leader among them
    Range ranges_[most_ranges];
    std::uint64_t number_ = 0;
    const void* body_ = nullptr;
    void (*call_)(const void*, std::size_t) = nullptr;
    std::mutex mutex_;
    std::exception_ptr error_;
};

} // namespace ovspec
