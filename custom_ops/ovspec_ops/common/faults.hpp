// What operations of the process could not compute. With one thread OpenVINO's CPU plugin drops an exception
// of an operation: inference returns, and the outputs are those of the one before. So who runs a pass looks
// here.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace ovspec {

class Faults {
public:
    static Faults& all() {
        static auto* faults = new Faults; // plugin threads may outlive static objects
        return *faults;
    }

    void add(const char* message) {
        const std::lock_guard<std::mutex> lock(mutex_);
        last_ = message;
        count_++;
    }

    std::uint64_t count() const { return count_.load(); }

    std::string last() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return last_;
    }

private:
    std::atomic<std::uint64_t> count_{0};
    std::mutex mutex_;
    std::string last_;
};

} // namespace ovspec
