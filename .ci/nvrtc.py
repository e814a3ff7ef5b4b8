"""Compiles the CUDA kernels with NVRTC, as the program does at run time: nvrtc.py [SOURCE..]. Needs NVIDIA's library, from
their package for pip or a CUDA installation, and no GPU."""

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

OPTIONS = [b"--fmad=false"]


def library():
    """NVRTC, or None where it is not to be had."""
    found = find_spec("nvidia")
    for folder in found.submodule_search_locations if found else []:
        for path in sorted(Path(folder).glob("*/lib/libnvrtc.so.*")):
            return ctypes.CDLL(str(path))
    try:
        return ctypes.CDLL("libnvrtc.so")
    except OSError:
        return None


def compiled(nvrtc, source):
    """The PTX of a source; exits with the compiler's words where it refuses."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    failed = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    size = ctypes.c_size_t()
    get = (nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog) if failed else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    get[0](program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    get[1](program, text)
    if failed:
        sys.exit(text.value.decode())
    return text.value.decode()


nvrtc = library()
if nvrtc is None:
    sys.exit(3)
ptx = compiled(nvrtc, b"".join(Path(path).read_bytes() for path in sys.argv[1:]))
entries = [line.split()[2].split("(")[0] for line in ptx.splitlines() if line.startswith(".visible .entry")]
print(f"{len(entries)} kernels, {len(ptx)} bytes of PTX: {' '.join(entries)}")
sys.exit(0 if entries else "no kernel")
