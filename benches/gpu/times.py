"""Times one layer of known models on a device, with this crate and with PyTorch, each case in a process of its own: first this crate and
PyTorch eager for all cases, then PyTorch compiled, so that a run that ends early has the first two."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import report

HERE = Path(__file__).resolve().parent
# As in the comparison on the CPU: the root mean square of the error divided by the result's.
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


def measure(record: dict, options, program: Path, variables: dict[str, str], end: float, step):
    """Measures each case with this crate, then with PyTorch. Fills `record`, and calls `step` after each."""
    # On the CPU the layers are composed as on a GPU, to test and count the same operations.
    ours = variables | ({"CANDLE_BLOCKS_REHEARSE": "cuda"} if options.device == "cpu" else {})
    # PyTorch finds its own libraries, in the order that it was made with.
    theirs = os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    pytorch = [sys.executable, str(HERE / "pytorch.py")]
    peers = {"ours": [str(program)]}
    if importlib.util.find_spec("torch") is None:
        record["left_out"].append(f"PyTorch: {sys.executable} has no torch")
    else:
        about = answer([*pytorch, "about", json.dumps({"device": options.device})], theirs, min(90, end - time.monotonic()))
        if "error" in about:
            record["left_out"].append(f"PyTorch: {about['error']}")
        else:
            record["machine"]["PyTorch"] = about["version"]
            peers |= {mode: [*pytorch, mode] for mode in ("eager", "compiled")}
    if options.device == "cpu":
        record["left_out"].append("memory of the CPU")
    wanted = cases(options)
    record["cases"] = [{"name": case["name"]} for case in wanted]
    for turn in (["ours", "eager"], ["compiled"]):
        for case, entry in zip(wanted, record["cases"]):
            for peer in turn:
                if peer not in peers:
                    continue
                left = end - time.monotonic()
                if left < 15:
                    record["left_out"].append(f"{report.PEERS[peer]}: {case['name']}, for lack of time")
                    continue
                with Memory(options.device) as memory:
                    found = answer([*peers[peer], json.dumps(case)], ours if peer == "ours" else theirs, min(left, 90))
                entry[peer] = found | {"sampled_mb": memory.peak_mb()}
                step(f"{report.line(entry)} {found.get('error', '')}")


def answer(command: list[str], variables: dict[str, str], patience: float) -> dict:
    """Returns a process's last line, which is JSON, or its error."""
    error, out, err = run(command, variables, patience)
    with contextlib.suppress(ValueError, IndexError):
        return json.loads(out.strip().splitlines()[-1])
    # Rust prints an error with its causes, or a panic message; Python prints one line.
    words = re.search(r"^(Error: |thread .* panicked).*", err, re.MULTILINE | re.DOTALL)
    words = words[0] if words else err.strip().rpartition("\n")[2]
    return {"error": f"{' '.join(words.split()).removeprefix('Error: ')[:400]} ({error or 'no answer'})"}


def run(command: list[str], variables: dict[str, str], patience: float) -> tuple[str | None, str, str]:
    """Runs a command, and returns its error and its output. After the time limit the command and all its child processes are
    killed."""
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=max(0.1, patience))
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return f"not at its end after {patience:.0f} s", out or "", err or ""
    code = process.returncode
    error = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}" if code else None
    return error, out or "", err or ""


def gpu() -> str:
    """Returns the name in nvidia-smi of the first GPU visible to programs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"


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
