// Calls of operations that are held back, and then made at the same time; in the thread sanitizer's build
// only. Python keeps its lock during a call, so that its threads never meet in an operation.
#pragma once

#ifdef OVSPEC_STD_THREADS

#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace ovspec {

class HeldCalls {
public:
    static HeldCalls& all() {
        static HeldCalls calls;
        return calls;
    }

    void hold() { holds_ = true; }

    // Whether `call` is held back.
    bool take(std::function<void()> call) {
        if (holds_)
            calls_.push_back(std::move(call));
        return holds_;
    }

    // Each on a thread of its own.
    void make() {
        holds_ = false;
        std::vector<std::thread> threads;
        for (const std::function<void()>& call : calls_)
            threads.emplace_back(call);
        for (std::thread& thread : threads)
            thread.join();
        calls_.clear();
    }

private:
    bool holds_ = false;
    std::vector<std::function<void()>> calls_;
};

} // namespace ovspec

#endif
