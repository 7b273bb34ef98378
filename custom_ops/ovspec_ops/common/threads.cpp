#include "common/threads.hpp"

#include <map>
#include <mutex>

#include "common/fail.hpp"

namespace ovspec {

SharedThreads& SharedThreads::of(const char* op, std::int64_t count) {
    if (count < 1 || count > most_threads)
        fail(op, "attribute threads is ", count, ", expected 1 to ", most_threads,
             ", or 0 for the threads of the plugin");
    static auto* mutex = new std::mutex;
    static auto* made = new std::map<std::int64_t, SharedThreads>;
    const std::lock_guard<std::mutex> lock(*mutex);
    return made->try_emplace(count, static_cast<int>(count)).first->second;
}

} // namespace ovspec
