// Threads that stay together for many loops: an operation of many steps enters the arena once, not at each.
#pragma once

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
        ticket_.store(number_ << 48 | std::uint64_t{count} << 24, std::memory_order_release);
        help(number_);
        wait([&] { return done_.load(std::memory_order_acquire) == count; });
        if (error_) {
            const std::exception_ptr error = error_;
            error_ = nullptr;
            std::rethrow_exception(error);
        }
    }

private:
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

    // Claims items of loop `number` until none is left.
    void help(std::uint64_t number) {
        for (std::uint64_t ticket = ticket_.load(std::memory_order_acquire);;) {
            const std::size_t item = ticket & 0xffffff, count = ticket >> 24 & 0xffffff;
            if (ticket >> 48 != number || item >= count)
                return;
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel))
                continue;
            try {
                call_(body_, item);
            } catch (...) {
                const std::lock_guard<std::mutex> lock(mutex_);
                error_ = std::current_exception();
            }
            done_.fetch_add(1, std::memory_order_acq_rel);
            ticket = ticket_.load(std::memory_order_acquire);
        }
    }

    void join() {
        std::uint64_t seen = 0;
        while (!over_.load(std::memory_order_acquire)) {
            wait([&] {
                return ticket_.load(std::memory_order_acquire) >> 48 != seen ||
                       over_.load(std::memory_order_acquire);
            });
            seen = ticket_.load(std::memory_order_acquire) >> 48;
            help(seen);
        }
    }

    // Number of the loop, its items, and the next one that nobody has claimed: 16, 24 and 24 bits.
    alignas(64) std::atomic<std::uint64_t> ticket_{0};
    alignas(64) std::atomic<std::size_t> done_{0};
    alignas(64) std::atomic<bool> over_{false};
    std::uint64_t number_ = 0;
    const void* body_ = nullptr;
    void (*call_)(const void*, std::size_t) = nullptr;
    std::mutex mutex_;
    std::exception_ptr error_;
};

} // namespace ovspec
