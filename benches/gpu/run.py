"""Runs what build.sh packed on a machine with a GPU: tests, conformance, and times beside PyTorch. Writes a report to attach to an
issue. README.md beside this file explains the parts.

    python3 benches/gpu/run.py [PART..] [--device cuda|metal|cpu] [--seconds 520] [--out gpu-report]
"""

import argparse
import contextlib
import glob
import os
import platform
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from datetime import date
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit(f"this needs Python 3.10 or newer; {sys.executable} is {platform.python_version()}")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(HERE.parent / "peers"))  # after this folder, which has a `report` of its own

import each
import judge
import machine
import report
import times

# Test programs, and the seconds that each may take. A short limit for all leaves time for the parts behind.
PROGRAMS = {"layers": 120, "training": 90, "inference": 60, "models": 120}
PARTS = ["tests", "conformance", "times", "judge", "sanitizer"]
# Environment variables that change results or times.
VARIABLES = re.compile(r"CANDLE_|CUDA_|CUBLAS_|NVIDIA_TF32|NVCC_|PYTORCH_|TORCH|RAYON_|OMP_NUM|MKL_NUM|RUSTFLAGS|CARGO_PROFILE|METAL_|MTL_")
LIBRARIES = ("libcublas.so.13", "libcublasLt.so.13", "libcudart.so.13", "libcurand.so.10")


def main():
    options = arguments()
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    kit = unpacked()
    built = dict(line.split(" ", 1) for line in (kit / "BUILT").read_text().splitlines())
    variables = environment(options.device)
    options.device = options.device.removesuffix("-one-stream")
    if built["device"] != options.device:
        sys.exit(f"{kit} was built for {built['device']}: give --device {built['device']}, or run build.sh {options.device}")
    record = {
        "date": date.today().isoformat(),
        "options": " ".join(sys.argv[1:]),
        "device": options.device,
        "smoke": options.smoke,
        "machine": describe(options.device) | {"built": f"commit {built['commit']}, {built['compiler']}"},
        "tests": [],
        "cases": [],
        "left_out": [f"{part}: not asked for" for part in PARTS if part not in options.parts],
    }
    record["machine"]["device handle"] = opened(kit, variables)
    begun = time.monotonic()

    def left() -> float:
        return end - time.monotonic()

    def step(text: str):
        """Saves the record so far, in case a later step fails."""
        (options.out / "report.md").write_text(report.markdown(record))
        print(f"[{time.monotonic() - begun:.0f} s] {text}", flush=True)

    for part in options.parts:
        if left() < 10:
            record["left_out"].append(f"{part}: for lack of time")
        elif part == "tests":
            for name, seconds in PROGRAMS.items():
                log = options.out / f"{name}.txt"
                found = each.tests(kit / "bin" / name, log, min(seconds, left()), options.processes, variables, options.only)
                record["tests"].append(found)
                step(report.tests_line(found))
        elif part == "conformance":
            log = options.out / "conformance.txt"
            record["conformance"] = each.conformance(kit / "bin" / "conformance", log, min(150, left()), options.processes, variables)
            step(report.conformance_line(record["conformance"]))
        elif part == "judge":
            record["judge"] = judge.run(options, min(180, left()))
            step(report.judge_line(record["judge"]))
        elif part == "times":
            times.measure(record, options, kit / "bin" / "device", variables, end, step)
        elif part == "sanitizer":
            record["sanitizer"] = sanitized(kit, options.out / "sanitizer.txt", max(10, left()), variables)
            step(record["sanitizer"])
    step(f"written: {options.out / 'report.md'}")
    sys.exit(1 if report.failures(record) else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; without any, the first three")
    parser.add_argument("--device", choices=["cuda", "cuda-one-stream", "metal", "cpu"], default="cuda", help="cuda-one-stream: one stream for all host threads, where candle's default is one for each")
    parser.add_argument("--seconds", type=float, default=520, help="for everything; what is left out is said")
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1), help="tests at a time, of those that run in a process of their own")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only tests whose names contain this")
    parser.add_argument("--smoke", action="store_true", help="small sizes and few calls: the times mean nothing")
    parser.add_argument("--compile", default="default", metavar="MODE", help="of torch.compile")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu-report")), help="a folder for the report and the logs")
    options = parser.parse_args()
    options.parts = options.parts or PARTS[:3]
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    return options


def unpacked() -> Path:
    """Returns the kit's folder: as build.sh left it here, or unpacked from its archive."""
    kit, archive = ROOT / "target/gpu/kit", ROOT / "target/gpu/kit.tar.xz"
    if (kit / "BUILT").exists():
        return kit
    if not archive.exists():
        sys.exit(f"no {archive}: build.sh makes it, here or on another machine")
    kit = Path(tempfile.mkdtemp(prefix="candle-blocks-gpu-"))
    with tarfile.open(archive, "r:xz") as file:
        file.extractall(kit, filter="data")
    return kit


def environment(device: str) -> dict[str, str]:
    """Returns the variables for this crate's programs. Tests find their files by CARGO_MANIFEST_DIR."""
    # Without this order the first of several GPUs would be the fastest, which may not be nvidia-smi's first.
    found = {name: value for name, value in os.environ.items() if name != "CANDLE_BLOCKS_REHEARSE"}
    found |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CANDLE_BLOCKS_TEST_DEVICE": device, "CARGO_MANIFEST_DIR": str(ROOT), "RUST_BACKTRACE": "0"}
    if device.startswith("cuda"):
        # The driver keeps the kernels that it compiled, for the programs that follow.
        found |= {"CUDA_CACHE_MAXSIZE": str(4 << 30), "LD_LIBRARY_PATH": libraries()}
    return found


def libraries() -> str:
    """Returns a search path with CUDA's libraries: those of PyTorch's packages, then those of an installed CUDA."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    hits = {str(Path(hit).parent) for folder in folders for name in LIBRARIES for hit in glob.glob(f"{folder}/nvidia/**/{name}", recursive=True)}
    known = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]
    found = [*sorted(hits), *(folder for folder in known if Path(folder).is_dir()), os.environ.get("LD_LIBRARY_PATH", "")]
    return ":".join(folder for folder in found if folder)


def opened(kit: Path, variables: dict[str, str]) -> str:
    """Runs one test of every layer alone, so that the driver compiles candle's kernels once, and returns the seconds. Ends the
    program if the device does not open."""
    command = [str(kit / "bin/layers"), "--exact", "devices::every_layer_answers_on_the_device_of_its_input", "--nocapture"]
    begin = time.monotonic()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    if "error while loading shared libraries" in said or "CANDLE_BLOCKS_TEST_DEVICE=" in said:
        sys.exit(f"the device does not open: {said.strip()[-600:]}\nLD_LIBRARY_PATH={variables.get('LD_LIBRARY_PATH', '')}")
    return f"first test in {time.monotonic() - begin:.1f} s, with the compilation of candle's kernels"


def sanitized(kit: Path, log: Path, seconds: float, variables: dict[str, str]) -> str:
    """Returns compute-sanitizer's summary of one test of every layer: reads and writes out of bounds."""
    command = ["compute-sanitizer", "--tool", "memcheck", str(kit / "bin/layers"), "--exact", "devices::every_layer_answers_on_the_device_of_its_input"]
    if not shutil.which(command[0]):
        return "compute-sanitizer: not found"
    with log.open("w") as file, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, env=variables, stdout=file, stderr=file, timeout=seconds)
    found = re.findall(r"ERROR SUMMARY: .*", log.read_text(errors="replace"))
    return f"compute-sanitizer: {found[-1] if found else 'not at its end'}"


# The machine.


def describe(device: str) -> dict[str, str]:
    here = machine.describe(None)
    lock = (ROOT / "Cargo.lock").read_text()
    version = {name: re.search(rf'name = "{name}"\nversion = "([^"]+)"', lock)[1] for name in ("candle-blocks", "candle-core")}
    facts = {"device": "the CPU, which computes as CUDA does" if device == "cpu" else None}
    if device == "cuda":
        for field in ("name", "memory.total", "compute_cap", "power.limit", "clocks.max.sm", "mig.mode.current", "driver_version"):
            facts["device" if field == "name" else field] = smi(f"--query-gpu={field}")
        driver = re.search(r"CUDA Version: *([\d.]+)", said("nvidia-smi"))
        facts["CUDA"] = f"the driver's {driver[1] if driver else 'unknown'}"
    if device == "metal":
        displays = said("system_profiler", "SPDisplaysDataType")
        for name in ("Chipset Model", "Total Number of Cores", "Metal Support"):
            found = re.search(rf"{name}: *(.+)", displays)
            facts["device" if name == "Chipset Model" else name] = found and found[1]
        facts["macOS"] = said("sw_vers", "-productVersion")
        facts["memory"] = said("sysctl", "-n", "hw.memsize") + " bytes"
    facts |= {
        "processor": f"{said('sysctl', '-n', 'machdep.cpu.brand_string') or here['processor']}, {here['cores']} cores",
        "system": platform.platform(),
        "load before": here["load_before"],
        "candle-blocks": version["candle-blocks"],
        "candle": version["candle-core"],
        "environment": ", ".join(f"{name}={os.environ[name]}" for name in sorted(os.environ) if VARIABLES.match(name)) or "nothing set",
    }
    return {name: str(fact) for name, fact in facts.items() if fact}


def said(*command) -> str:
    """Returns a command's output, or nothing if the command is missing or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def smi(*query: str) -> str:
    return said("nvidia-smi", "-i", times.gpu(), *query, "--format=csv,noheader")


if __name__ == "__main__":
    main()
