#!/bin/sh
# Compiles the native sources that include no header of OpenVINO for other platforms; links and runs nothing.
#   apt-get install g++-aarch64-linux-gnu g++-mingw-w64-x86-64-posix clang
# aarch64 Linux and Windows get the plain kernels and the choice of instruction sets, Windows the
# kernels of AVX2 too. macOS has no free headers to compile with: of it only the kernels are checked, by clang for Apple's
# processors.
set -eu
cd "$(dirname "$0")/../custom_ops"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
cat > "$objects/ovspec_isas.hpp" <<'HEADER'
#pragma once
#define OVSPEC_ISAS(use, ...) use(plain, plain, false, __VA_ARGS__)
HEADER
kernels=$(ls ovspec_ops/*/kernel.cpp)
# What no header of OpenVINO reaches.
host="ovspec_ops/common/isa.cpp"
for source in ovspec_ops/*/*.cpp; do
    case $source in */kernel.cpp | */isa.cpp) continue ;; esac
    if ${CXX:-c++} -std=c++17 -Iovspec_ops -I"$objects" -E "$source" -o /dev/null 2> /dev/null; then
        host="$host $source"
    fi
done

# compile LABEL FILES COMMAND...
compile() {
    label=$1 files=$2
    shift 2
    for file in $files; do
        "$@" -std=c++17 -O2 -Wall -Wextra -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized -Iovspec_ops -I"$objects" -c "$file" -o "$objects/out.o"
    done
    echo "$label: $(echo "$files" | wc -w) files compiled"
}

kernel="-fno-exceptions -ffp-contract=fast -DOVSPEC_ISA=plain -DOVSPEC_LANES=4"
avx2="-fno-exceptions -ffp-contract=fast -DOVSPEC_ISA=avx2 -DOVSPEC_LANES=8 -mavx2 -mfma -mf16c"
compile "aarch64 Linux, plain kernels" "$kernels" aarch64-linux-gnu-g++ $kernel
version='-DOVSPEC_OPENVINO_VERSION="none"'
compile "aarch64 Linux, other sources" "$host" aarch64-linux-gnu-g++ "$version"
compile "Windows, plain kernels" "$kernels" x86_64-w64-mingw32-g++ $kernel
compile "Windows, AVX2 kernels" "$kernels" x86_64-w64-mingw32-g++ $avx2
compile "Windows, other sources" "$host" x86_64-w64-mingw32-g++ "$version" -DOVSPEC_X86_KERNELS
# Of the standard headers, kernels need only the types of two, which the compiler itself knows.
mkdir "$objects/types"
printf '#include <stddef.h>\nnamespace std { using ::size_t; using ::ptrdiff_t; }\n' > "$objects/types/cstddef"
{
    printf '#include <stdint.h>\nnamespace std { using ::uintptr_t;\n'
    for bits in 8 16 32 64; do printf 'using ::int%s_t; using ::uint%s_t;\n' $bits $bits; done
    printf '}\n'
} > "$objects/types/cstdint"
compile "macOS, plain kernels" "$kernels" clang++ --target=arm64-apple-macos13 -ffreestanding -nostdinc++ \
    -isystem "$objects/types" -Wno-unknown-pragmas -Wno-unknown-warning-option -Wno-unused-function $kernel
