// How functions are marked in headers that kernels include. A kernel file is compiled once per instruction
// set: an ordinary inline function would leave one copy per set under one name, and the linker would keep any
// of them, AVX-512 code for a processor without it among them. So every function in these headers is always
// inlined (also without optimisation) or belongs to the namespace OVSPEC_ISA. tests/ops/test_symbols.py
// checks it.
#pragma once

#define OVSPEC_INLINE static inline __attribute__((always_inline))
#define OVSPEC_INLINE_MEMBER inline __attribute__((always_inline))
