#!/bin/sh
# The tests of the kernels on another CPU's instructions, emulated: those of 64-bit Arm on any Linux. By hand, as it takes minutes.
#
#   apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
#   rustup target add aarch64-unknown-linux-gnu
#   tests/emulated.sh [arguments of cargo test; by default `-p candle-blocks-kernels`]
#
# The emulated CPU has every level of instructions; QEMU_CPU=neoverse-n1 lacks neon_bf16, QEMU_CPU=cortex-a72 neon_dotprod too.
# Right bits only: an emulator says nothing about speed. Tests that start the program need the kernel to run such
# programs by itself (binfmt_misc).
set -eu
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
[ $# -gt 0 ] || set -- -p candle-blocks-kernels
exec cargo test --release --target "$target" "$@"
