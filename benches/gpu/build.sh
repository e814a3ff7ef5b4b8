#!/bin/bash
# build.sh [cuda|metal|cpu]: builds the tests and the benchmark for a device, and packs them into target/gpu/kit.tar.xz. The machine
# with the device then needs Python 3.10 and this tree, and neither Rust nor a network: benches/gpu/README.md.
#   cuda   if no nvcc is found, nvcc 13.0 comes from PyPI, and stand-ins for the driver and the libraries are linked against
#   cpu    the same programs without a device, to try the kit
# Environment: CUDA_COMPUTE_CAP (90: H100, H200; 80: A100; 89: RTX 40), JOBS (the number of cores), FULL=1 (candle's kernels for
# quantized weights too, which nvcc-lean leaves out: they are most of nvcc's time, and this crate calls none).
set -euo pipefail
cd "$(dirname "$0")/../.."
device=${1:-cuda}
here=$PWD/benches/gpu
folder=$PWD/target/gpu
mkdir -p "$folder"
features=()
case $device in
  cuda)
    features=(--features candle-blocks/cuda)
    export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-90} CUDAFORGE_THREADS=${JOBS:-$(nproc)}
    if ! command -v nvcc >/dev/null; then
      "$here/toolkit.sh" "$folder/toolkit"
      export CUDA_HOME=$folder/toolkit/home PATH=$folder/toolkit/home/bin:$PATH
    fi
    nvcc=$(command -v nvcc)
    compiler=$("$nvcc" --version | tail -1)
    if [ -z "${FULL:-}" ]; then
      mkdir -p "$folder/lean"
      cp "$here/nvcc-lean" "$folder/lean/"
      export NVCC_REAL=$nvcc NVCC=$folder/lean/nvcc-lean
    fi
    ;;
  metal) features=(--features candle-blocks/metal) compiler=$(xcrun --version 2>/dev/null || echo 'no xcrun') ;;
  cpu) compiler='no device' ;;
  *) sed -n '2,/^set/{/^#/p}' "$0"; exit 2 ;;
esac
# A target folder of its own: features and compilers differ from those of the ordinary builds.
export CARGO_TARGET_DIR=$folder/target
cargo build --jobs "${JOBS:-$(nproc)}" --release --locked -p candle-blocks -p candle-blocks-layers "${features[@]}" \
  --test layers --test training --test inference --test models --test conformance --bench device \
  --message-format=json-render-diagnostics >"$folder/built.json"

kit=$folder/kit
rm -rf "$kit"
mkdir -p "$kit/bin"
python3 -c '
import json, sys
for line in open(sys.argv[1]):
    found = json.loads(line)
    if found.get("executable"):
        print(found["target"]["name"], found["executable"])' "$folder/built.json" | sort -u | while read -r name path; do
  cp "$path" "$kit/bin/$name"
  strip "$kit/bin/$name"
done
changes=$(git diff --quiet HEAD 2>/dev/null || echo ', with changes')
cat >"$kit/BUILT" <<END
device $device
commit $(git rev-parse HEAD 2>/dev/null || echo unknown)$changes
compiler $(rustc --version); $compiler${CUDA_COMPUTE_CAP:+, compute capability $CUDA_COMPUTE_CAP}${NVCC_REAL:+, without candle\'s kernels for quantized weights}
END

# With stand-ins, every symbol must be found, and a test without a device must say so.
if [ -d "$folder/toolkit/standins" ]; then
  export LD_LIBRARY_PATH=$folder/toolkit/standins
  for program in "$kit"/bin/*; do
    missing=$(ldd -r "$program" | grep -E 'not found|undefined' || true)
    [ -z "$missing" ] || { printf '%s\n' "$program:" "$missing" >&2; exit 1; }
  done
  said=$(CANDLE_BLOCKS_TEST_DEVICE=cuda CARGO_MANIFEST_DIR=$PWD "$kit/bin/layers" --exact devices::every_layer_answers_on_the_device_of_its_input 2>&1 || true)
  grep -q CUDA_ERROR_NO_DEVICE <<<"$said" || { printf '%s\n' "not the error that was expected without a device:" "$said" >&2; exit 1; }
fi
# Every program holds the same kernels, 40 MB: the window reaches back over a whole program.
tar -c -C "$kit" . | xz -T0 --lzma2=preset=6,dict=128MiB >"$folder/kit.tar.xz"
ls -l "$folder/kit.tar.xz"
echo "now, on the machine with the device, in this tree with target/gpu/kit.tar.xz: python3 benches/gpu/run.py"
