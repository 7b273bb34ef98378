// Declares an operation's table of kernels once per instruction set. No OpenVINO type: kernels include it.
#pragma once

#define OVSPEC_DECLARE_KERNELS(type, table)                                                                  \
    namespace plain {                                                                                        \
    extern const type table;                                                                                 \
    }                                                                                                        \
    namespace avx2 {                                                                                         \
    extern const type table;                                                                                 \
    }                                                                                                        \
    namespace avx2vnni {                                                                                     \
    extern const type table;                                                                                 \
    }                                                                                                        \
    namespace avx512 {                                                                                       \
    extern const type table;                                                                                 \
    }                                                                                                        \
    namespace avx512vnni {                                                                                   \
    extern const type table;                                                                                 \
    }                                                                                                        \
    namespace amx {                                                                                          \
    extern const type table;                                                                                 \
    }                                                                                                        \
    namespace avx2x16 {                                                                                      \
    extern const type table;                                                                                 \
    }                                                                                                        \
    namespace avx2dot {                                                                                      \
    extern const type table;                                                                                 \
    }
