// An operation's tables of kernels, one per instruction set. No OpenVINO type: kernels include this.
#pragma once

#include "ovspec_isas.hpp"

#define OVSPEC_DECLARE_TABLE(isa, needs, for_tests, type, table)                                             \
    namespace isa {                                                                                          \
    extern const type table;                                                                                 \
    }
#define OVSPEC_DECLARE_KERNELS(type, table) OVSPEC_ISAS(OVSPEC_DECLARE_TABLE, type, table)

// The table for the instruction set in use; needs common/isa.hpp.
#define OVSPEC_TABLE_ADDRESS(isa, needs, for_tests, table) &::ovspec::isa::table,
#define OVSPEC_KERNELS(table)                                                                                \
    ([]() -> decltype(auto) {                                                                                \
        static constexpr decltype(&::ovspec::plain::table) tables[] = {                                      \
            OVSPEC_ISAS(OVSPEC_TABLE_ADDRESS, table)};                                                       \
        return *tables[static_cast<int>(::ovspec::active_isa())];                                            \
    }())
