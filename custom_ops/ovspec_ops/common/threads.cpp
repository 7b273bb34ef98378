#include "common/threads.hpp"

#include <map>
#include <mutex>

#include "common/fail.hpp"

namespace ovspec {

tbb::task_arena& arena_of(const char* op, std::int64_t threads) {
    if (threads < 1 || threads > most_threads)
        fail(op, "attribute threads is ", threads, ", expected 1 to ", most_threads,
             ", or 0 for the threads of the plugin");
    static auto* mutex = new std::mutex;
    static auto* arenas = new std::map<std::int64_t, tbb::task_arena>;
    const std::lock_guard<std::mutex> lock(*mutex);
    return arenas->try_emplace(threads, static_cast<int>(threads)).first->second;
}

} // namespace ovspec
