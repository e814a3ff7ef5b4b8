#!/bin/bash
# toolkit.sh DIR: lays in DIR what builds candle's cuda feature without a GPU, a driver or an installed CUDA: nvcc 13.0, its headers and
# libcudart from PyPI (105 MB), and stand-ins to link against for libcuda, libcublas, libcublasLt, libcurand and libnvrtc, whose
# functions have the names in cudarc's bindings. A newer nvcc's PTX is refused by driver 580.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
[ ! -e "$dir/complete" ] || exit 0
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q --no-deps --target "$dir/wheels" \
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 \
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
home=$dir/wheels/nvidia/cu13
ln -sfn "$home" "$dir/home"
ln -sfn lib "$home/lib64"
ln -sf libcudart.so.13 "$home/lib/libcudart.so"
mkdir -p "$home/lib/stubs" "$dir/standins"
ln -sf "$home/lib/libcudart.so.13" "$dir/standins/libcudart.so.13"
cargo fetch -q --locked
cudarc=$(cargo metadata --format-version 1 --locked --offline --features cuda |
  python3 -c 'import json, sys; print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"))')
cudarc=$(dirname "$cudarc")
stand_in() { # bindings' folder, name prefix, soname, file
  grep -rhoE "fn $2[A-Za-z0-9_]+" "$cudarc/src/$1/sys/mod.rs" | sort -u |
    sed 's/^fn \(.*\)/int \1(void) { return 100; }/' | # CUDA_ERROR_NO_DEVICE
    gcc -x c -shared -fPIC -O1 -w -Wl,-soname,"$3" -o "$home/lib/stubs/$4" -
  ln -sf "$home/lib/stubs/$4" "$dir/standins/$3"
}
stand_in driver   'cu[A-Z]' libcuda.so.1       libcuda.so
stand_in cublas   'cublas'  libcublas.so.13    libcublas.so
stand_in cublaslt 'cublas'  libcublasLt.so.13  libcublasLt.so
stand_in curand   'curand'  libcurand.so.10    libcurand.so
stand_in nvrtc    'nvrtc'   libnvrtc.so.13     libnvrtc.so
touch "$dir/complete"
