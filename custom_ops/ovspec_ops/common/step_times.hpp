// How long the steps of passes take, while somebody asks for it.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace ovspec {

// Of all models of the process, summed by kind of step.
class StepTimes {
public:
    static StepTimes& all() {
        static auto* times = new StepTimes; // plugin threads may outlive static objects
        return *times;
    }

    bool asked() const { return asked_.load(std::memory_order_relaxed); }

    void begin() {
        take();
        asked_ = true;
    }

    void add(const char* kind, double microseconds) {
        const std::lock_guard<std::mutex> lock(mutex_);
        sums_[kind] += microseconds;
    }

    // What has been added since the beginning; nothing is any more.
    std::map<std::string, double> take() {
        asked_ = false;
        const std::lock_guard<std::mutex> lock(mutex_);
        return std::exchange(sums_, {});
    }

private:
    std::atomic<bool> asked_{false};
    std::mutex mutex_;
    std::map<std::string, double> sums_;
};

// Adds the time of its life to those of a kind of step, where somebody asks; null: of no kind.
class StepTimer {
public:
    explicit StepTimer(const char* kind) : kind_(kind && StepTimes::all().asked() ? kind : nullptr) {
        if (kind_)
            began_ = Clock::now();
    }
    ~StepTimer() {
        if (kind_)
            StepTimes::all().add(kind_,
                                 std::chrono::duration<double, std::micro>(Clock::now() - began_).count());
    }
    StepTimer(const StepTimer&) = delete;
    StepTimer& operator=(const StepTimer&) = delete;

private:
    using Clock = std::chrono::steady_clock;

    const char* kind_;
    Clock::time_point began_;
};

} // namespace ovspec
