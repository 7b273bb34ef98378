// Loops over items, and the memory that their threads work in.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "common/arena.hpp"
#include "common/team.hpp"

namespace ovspec {

// Work, in multiply-adds or elements read, below which a second thread costs more than it saves: some 10 us
// of one thread where it has to wake up, and 1 us where it is awake.
constexpr std::size_t serial_work = std::size_t{1} << 18, serial_work_awake = std::size_t{1} << 15;

// Says, as long as it lives, that the other threads of the caller's arena are awake.
class ThreadsAwake {
public:
    ThreadsAwake() { here() = true; }
    ~ThreadsAwake() { here() = false; }
    ThreadsAwake(const ThreadsAwake&) = delete;
    ThreadsAwake& operator=(const ThreadsAwake&) = delete;

    static bool& here() {
        static thread_local bool awake = false;
        return awake;
    }
};

// Whether the calling thread does the work alone.
inline bool runs_alone([[maybe_unused]] std::size_t work) {
#ifdef OVSPEC_STD_THREADS
    return false; // small work has the same races as large work, and is computed sooner
#else
    return work < (ThreadsAwake::here() || Team::here() ? serial_work_awake : serial_work);
#endif
}

#ifdef OVSPEC_DEVELOPER
// Most items that threads shared in one loop; for tests (common/exports.cpp).
inline std::atomic<std::size_t> most_shared_items{0};
#endif

// body(item) for every item below `count`; `work` is that of all items together.
template <class Body> void parallel_items(std::size_t count, std::size_t work, const Body& body) {
    if (count == 1 || runs_alone(work)) {
        for (std::size_t item = 0; item < count; ++item)
            body(item);
        return;
    }
#ifdef OVSPEC_DEVELOPER
    most_shared_items = std::max(most_shared_items.load(), count);
#endif
    if (Team* team = Team::here())
        return team->share(count, body);
    share_items(count, body);
}

// The calling thread's own scratch memory; what a task finds there is undefined. Many threads that take
// theirs out of a Pool at every task wait for its lock.
template <class T> T& of_this_thread() {
    static thread_local T scratch;
    return scratch;
}

// Objects that a call takes and gives back, so that no two calls use one at the same time.
template <class T> class Pool {
public:
    Pool() = default;

    class Lease {
    public:
        Lease(Pool& pool, std::unique_ptr<T> item) : pool_(pool), item_(std::move(item)) {}
        ~Lease() { pool_.give(std::move(item_)); }
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;
        T& operator*() { return *item_; }
        T* operator->() { return item_.get(); }

    private:
        Pool& pool_;
        std::unique_ptr<T> item_;
    };

    // One of those that all layers of all models share. They are never destroyed, as plugin threads may
    // outlive static objects.
    static Lease take() {
        static auto* pool = new Pool;
        return pool->lend();
    }

    Lease lend() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (free_.empty()) {
            free_.reserve(++made_); // so that giving back never allocates
            return Lease(*this, std::make_unique<T>());
        }
        std::unique_ptr<T> item = std::move(free_.back());
        free_.pop_back();
        return Lease(*this, std::move(item));
    }

private:
    void give(std::unique_ptr<T> item) {
        const std::lock_guard<std::mutex> lock(mutex_);
        free_.push_back(std::move(item));
    }

    std::mutex mutex_;
    std::vector<std::unique_ptr<T>> free_;
    std::size_t made_ = 0;
};

// Uninitialised floats, aligned to a cache line. It grows, never shrinks, and loses its content when it
// grows.
class FloatBuffer {
public:
    float* reserve(std::size_t floats) {
        if (floats > capacity_) {
            data_.reset();
            capacity_ = 0;
            data_.reset(static_cast<float*>(::operator new(floats * sizeof(float), alignment)));
            capacity_ = floats;
        }
        return data_.get();
    }
    std::uint8_t* reserve_bytes(std::size_t bytes) {
        return reinterpret_cast<std::uint8_t*>(reserve((bytes + sizeof(float) - 1) / sizeof(float)));
    }

private:
    static constexpr std::align_val_t alignment{64};
    struct Free {
        void operator()(float* data) const { ::operator delete(data, alignment); }
    };
    std::unique_ptr<float, Free> data_;
    std::size_t capacity_ = 0;
};

} // namespace ovspec
