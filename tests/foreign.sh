#!/bin/bash
# Tests for Windows, under Wine, or for WebAssembly with WASI, under wasmtime, on Debian. By hand, as it takes minutes.
#
#   apt-get install gcc-mingw-w64-x86-64 wine    # for windows; Wine before 9 lacks the bcryptprimitives.dll of Rust programs
#   pip install wasmtime                         # for wasi
#   tests/foreign.sh windows|wasi [arguments of cargo test]
#
# Without the target's standard library (`rustup target add x86_64-pc-windows-gnu` or `wasm32-wasip1`), cargo compiles one
# from source; for wasi that takes Debian's wasi-libc of 2025 or later too.
set -euo pipefail
cd "$(dirname "$0")/.."
system=$1
shift
build=()
case $system in
windows)
  target=x86_64-pc-windows-gnu
  export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER=x86_64-w64-mingw32-gcc
  export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=wine WINEDEBUG=-all
  crates=std
  ;;
wasi)
  target=wasm32-wasip1
  flags="-C target-feature=+simd128"
  export CARGO_TARGET_WASM32_WASIP1_RUNNER="python3 $PWD/tests/wasi.py"
  crates=std,panic_abort
  ;;
esac
if ! rustup target list --installed | grep -qx $target; then
  std="$PWD/target/std-source"
  [ -d "$std/library" ] || .ci/std-source.sh "$std"
  export __CARGO_TESTS_ONLY_SRC_ROOT="$std/library" RUSTC_BOOTSTRAP=1
  build=(-Zbuild-std=$crates)
  libc=/usr/lib/wasm32-wasi
  flags="${flags:-} -L native=$libc -C link-self-contained=no -C link-arg=$libc/crt1-command.o"
fi
[ $system = windows ] || export CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS="$flags"
exec cargo test --release --target $target "${build[@]}" "$@"
