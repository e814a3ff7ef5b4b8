"""Checks results and measures speed on a GPU. Runs the device tests, measures a few layers, with PyTorch for
comparison if it is installed, and writes a report to attach to an issue. benches/README.md explains the report.

    python3 benches/device.py cuda
    python3 benches/device.py metal
    python3 benches/device.py cpu --smoke    # tries this program without a GPU
"""

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import date
from pathlib import Path

if sys.version_info < (3, 10):
    sys.exit(f"this needs Python 3.10 or newer; {sys.executable} is {platform.python_version()}")

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benches" / "peers"))

import device_report as report
import machine
import workers

PROGRAMS = ["layers", "training", "inference", "conformance"]
# Same as in the comparison on the CPU: root mean square of the error divided by the result's.
TOLERANCE = {"f32": 1e-5, "bf16": 0.05}
MODELS = {
    "bert-base": {"family": "bert", "d_model": 768, "n_heads": 12, "n_kv_heads": 12, "d_ff": 3072},
    "llama-8b": {"family": "llama", "d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14336},
}
SMALL = {
    "bert-base": {"family": "bert", "d_model": 96, "n_heads": 4, "n_kv_heads": 4, "d_ff": 384},
    "llama-8b": {"family": "llama", "d_model": 128, "n_heads": 8, "n_kv_heads": 2, "d_ff": 448},
}
# Operation, model, batch, sequence (for a decoder's step: the positions before it), types.
CASES = [
    ("forward", "bert-base", 32, 128, ["bf16", "f32"]),
    ("forward", "llama-8b", 1, 2048, ["bf16", "f32"]),
    ("decode", "llama-8b", 1, 512, ["bf16", "f32"]),
    ("train", "bert-base", 8, 128, ["f32"]),
]
# Environment variables that change results or times.
VARIABLES = re.compile(r"CANDLE_|CUDA_|CUBLAS_|NVIDIA_TF32|NVCC_|PYTORCH_|TORCH|RAYON_|OMP_NUM|MKL_NUM|RUSTFLAGS|CARGO_PROFILE|METAL_|MTL_")


def main():
    options = arguments()
    record = {
        "date": date.today().isoformat(),
        "options": " ".join(sys.argv[1:]),
        "device": options.device,
        "smoke": options.smoke,
        "machine": describe(options.device),
        "tests": [],
        "cases": [],
        "left_out": [],
    }
    started = time.monotonic()

    def step(text: str):
        """Saves the record so far, in case a later step fails."""
        options.out.write_text(report.markdown(record))
        print(f"[{(time.monotonic() - started) / 60:.0f} min] {text}", flush=True)

    if options.only != "times":
        for program in PROGRAMS:
            step(f"tests: {program}")
            record["tests"].append(tested(program, options))
    else:
        record["left_out"].append("the tests (--only times)")
    if options.only != "tests":
        step("building the benchmark")
        measure(record, options, step)
    else:
        record["left_out"].append("the times (--only tests)")
    step(f"written: {options.out}")
    sys.exit(1 if report.failures(record) else 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=["cuda", "metal", "cpu"])
    parser.add_argument("--smoke", action="store_true", help="small sizes and few calls: the times mean nothing")
    parser.add_argument("--only", choices=["tests", "times"], help="one half of it")
    parser.add_argument("--compile", default="default", metavar="MODE", help="of torch.compile")
    parser.add_argument("--patience", type=float, default=3600, help="seconds that a test program or a case may take")
    parser.add_argument("--out", type=Path, default=Path("device-report.md"), help="the report; outputs of tests lie beside it")
    options = parser.parse_args()
    options.out.resolve().parent.mkdir(parents=True, exist_ok=True)
    return options


# The machine.


def describe(device: str) -> dict[str, str]:
    here = machine.describe(None)
    lock = (ROOT / "Cargo.lock").read_text()
    version = {name: re.search(rf'name = "{name}"\nversion = "([^"]+)"', lock)[1] for name in ("candle-blocks", "candle-core")}
    commit = said("git", "-C", ROOT, "rev-parse", "HEAD")
    if commit and said("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no"):
        commit += ", with changes"
    facts = {"device": "the CPU, which computes as CUDA does" if device == "cpu" else None}
    if device == "cuda":
        for field in ("name", "memory.total", "compute_cap", "power.limit", "clocks.max.sm", "mig.mode.current", "driver_version"):
            facts["device" if field == "name" else field] = smi(f"--query-gpu={field}")
        toolkit, driver = re.search(r"release ([\d.]+)", said("nvcc", "--version")), re.search(r"CUDA Version: *([\d.]+)", said("nvidia-smi"))
        facts["CUDA"] = f"{toolkit[1] if toolkit else 'no nvcc'}, the driver's {driver[1] if driver else 'unknown'}"
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
        "candle-blocks": f"{version['candle-blocks']}, commit {commit or 'unknown'}",
        "candle": version["candle-core"],
        "rustc": said("rustc", "--version"),
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
    return said("nvidia-smi", "-i", gpu(), *query, "--format=csv,noheader")


def gpu() -> str:
    """Returns the name in nvidia-smi of the first GPU visible to programs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


def environment(**changes: str) -> dict[str, str]:
    # Without this order the first of several GPUs would be the fastest, which may not be nvidia-smi's first.
    kept = {name: value for name, value in os.environ.items() if name != "CANDLE_BLOCKS_REHEARSE"}
    return kept | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | changes


def run(command: list[str], variables: dict[str, str], patience: float, log=None) -> tuple[str | None, str, str]:
    """Runs a command, and returns its error and its output, unless the output goes to a log. After the time limit the
    command and all its child processes are killed."""
    pipe = log or subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=patience)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return f"not at its end after {patience:.0f} s", out or "", err or ""
    code = process.returncode
    error = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}" if code else None
    return error, out or "", err or ""


def features(device: str) -> list[str]:
    return ["--locked", "--features", "cli" if device == "cpu" else f"cli,{device}"]


# The tests.


def tested(program: str, options) -> dict:
    """Runs one test program on the device. Its whole output is stored next to the report."""
    command = ["cargo", "test", "--release", *features(options.device), "--test", program]
    path = options.out.with_name(f"{options.out.stem}-{program}.txt")
    begin = time.monotonic()
    with path.open("w") as log:
        error, _, _ = run(command, environment(CANDLE_BLOCKS_TEST_DEVICE=options.device), options.patience, log)
    return read_tests(program, path.read_text(errors="replace"), error) | {"seconds": time.monotonic() - begin, "log": path.name}


def read_tests(program: str, text: str, error: str | None) -> dict:
    """Returns the counts, failures and ignored tests in a test program's output."""
    result = {"program": program, "passed": 0, "failed": 0, "ignored": 0, "failures": {}, "error": None}
    result["left_out"] = sorted(set(re.findall(r"LEFT OUT: (.+)", text)))
    counts = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", text, re.MULTILINE)
    if counts:
        result |= zip(("passed", "failed", "ignored"), map(int, counts[-1]))
    if not counts or error and not result["failed"]:
        result["error"] = "\n".join([error or "no result", *text.strip().splitlines()[-12:]])
    names = re.findall(r"^    (\S+)$", text.rsplit("\nfailures:\n", 1)[-1], re.MULTILINE) if result["failed"] else []
    for name in names:
        output = re.search(rf"^---- {re.escape(name)} stdout ----\n(.*?)(?=^---- |^failures:$)", text, re.MULTILINE | re.DOTALL)
        panic = output and re.search(r"^thread .* panicked .*", output[1], re.MULTILINE | re.DOTALL)
        result["failures"][name] = "\n".join(line[:300] for line in panic[0].splitlines()[:8]).strip() if panic else ""
    return result


# The times.


def cases(options) -> list[dict]:
    models = SMALL if options.smoke else MODELS
    effort = {"warm": 1, "least": 3, "seconds": 0.05} if options.smoke else {"warm": 5, "least": 20, "seconds": 2.0}
    found = []
    for op, model, batch, seq, types in CASES:
        shape = (min(batch, 2), min(seq, 24)) if options.smoke else (batch, seq)
        sizes = {"device": options.device, "op": op, "batch": shape[0], "seq": shape[1], "compile": options.compile}
        for dtype in types:
            name = f"{op} {model} {shape[0]} x {shape[1]} {dtype}"
            found.append({"name": name, "dtype": dtype, "tolerance": TOLERANCE[dtype], **sizes, **models[model], **effort})
    return found


def measure(record: dict, options, step):
    """Measures each case with this crate, then with PyTorch, each in a separate process."""
    peers = {}
    try:
        cargo = ["bench", "--bench", "device", "--no-run", *features(options.device)]
        peers["ours"] = [workers.built(ROOT, cargo, "device")]
    except SystemExit as error:
        record["broken"] = str(error)
    pytorch = [sys.executable, str(ROOT / "benches" / "device_pytorch.py")]
    if importlib.util.find_spec("torch") is None:
        record["left_out"].append(f"PyTorch: {sys.executable} has no torch")
    else:
        about = answer([*pytorch, "about", json.dumps({"device": options.device})], environment(), options.patience)
        if "error" in about:
            record["left_out"].append(f"PyTorch: {about['error']}")
        else:
            record["machine"]["PyTorch"] = about["version"]
            peers |= {mode: [*pytorch, mode] for mode in ("eager", "compiled")}
    if options.device == "cpu":
        record["left_out"].append("memory of the CPU")
    for case in cases(options):
        entry = {"name": case["name"]}
        record["cases"].append(entry)
        for peer, command in peers.items():
            # On the CPU the layers are composed like on a GPU, to test and count the same operations.
            rehearse = {"CANDLE_BLOCKS_REHEARSE": "cuda"} if options.device == "cpu" and peer == "ours" else {}
            variables = environment(RUST_BACKTRACE="0", **rehearse)  # an error without a backtrace
            with Memory(options.device) as memory:
                found = answer([*command, json.dumps(case)], variables, options.patience)
            entry[peer] = found | {"sampled_mb": memory.peak_mb()}
        step(report.line(entry))


def answer(command: list[str], variables: dict[str, str], patience: float) -> dict:
    """Returns a process's last line, which is JSON, or its error."""
    error, out, err = run(command, variables, patience)
    with contextlib.suppress(ValueError, IndexError):
        return json.loads(out.strip().splitlines()[-1])
    # Rust prints an error with its causes, or a panic message; Python prints one line.
    words = re.search(r"^(Error: |thread .* panicked).*", err, re.MULTILINE | re.DOTALL)
    words = words[0] if words else err.strip().rpartition("\n")[2]
    return {"error": f"{' '.join(words.split()).removeprefix('Error: ')[:400]} ({error or 'no answer'})"}


class Memory:
    """Samples the memory used on the whole GPU with nvidia-smi every 20 ms while another process runs."""

    def __init__(self, device: str):
        self.process, self.samples, self.first = None, [], threading.Event()
        if device == "cuda" and shutil.which("nvidia-smi"):
            query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "20"]
            self.process = subprocess.Popen(["nvidia-smi", "-i", gpu(), *query], stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        if self.process:
            self.reader = threading.Thread(target=self.read, daemon=True)
            self.reader.start()
            self.first.wait(5)
        return self

    def read(self):
        for text in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.samples.append(float(text) * 1.048576)  # from MiB
            self.first.set()

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.reader.join()
            self.process.stdout.close()

    def peak_mb(self) -> float | None:
        """Returns the peak minus the memory used before the process started."""
        return max(self.samples) - self.samples[0] if self.samples else None


if __name__ == "__main__":
    main()
