// How the operations refuse what they are given.
#pragma once

#include <sstream>
#include <stdexcept>

namespace ovspec {

// std::invalid_argument "<op>: <parts>", the parts one after the other. Messages are built here, so that a
// check allocates nothing where it finds nothing.
template <class... Parts> [[noreturn, gnu::cold]] void fail(const char* op, const Parts&... parts) {
    std::ostringstream message;
    message << std::fixed << op << ": ";
    (message << ... << parts);
    throw std::invalid_argument(message.str());
}

} // namespace ovspec
