"""A peer in a separate process: answers the driver's lines of JSON with one line each.

    load    a case: checkpoint, input, op, precision, threads   -> settings
    check   computes once and writes the result to a file       -> nothing
    run     computes `warm` times, then `count` times measured  -> ms, a list; for a generation first_ms, to the first token;
                                                                   peak_mb, memory since loading, or for whole models
                                                                   since the process's start

Run as `worker.py NAME`; the driver does.
"""

import gc
import json
import os
import sys
import time
from importlib import metadata
from pathlib import Path


def main(name: str):
    # Libraries print to standard error; the protocol alone uses standard output.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields):
        print(json.dumps(fields), file=out, flush=True)

    threads = int(os.environ["OMP_NUM_THREADS"])
    answer(name=name, version=version(name))
    peer = run = kind = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            match command.pop("do"):
                case "load":
                    run = None
                    gc.collect()
                    task = Task(command)
                    if kind != task.kind:
                        peer, kind = make(name, task.kind, threads), task.kind
                    run = peer.load(task)
                    if kind == "layers":
                        forget_peak()
                    answer(settings=peer.settings)
                case "check":
                    write(Path(command["output"]), getattr(run, "check", run)())
                    answer()
                case "run":
                    for _ in range(command["warm"]):
                        run()
                    samples = [timed(run) for _ in range(command["count"])]
                    ms, first_ms = ([time for time in times if time is not None] for times in zip(*samples))
                    answer(ms=ms, first_ms=first_ms, peak_mb=peak_mb())
        except Exception as error:  # the driver records it and continues with the other peers
            text = str(error).strip() or type(error).__name__
            answer(error=text.splitlines()[0][:300])


class Task:
    """A case for a worker."""

    def __init__(self, fields: dict):
        self.op, self.precision = fields["op"], fields["precision"]
        self.checkpoint = Path(fields["checkpoint"])
        self.kind = self.op if self.op in ("texts", "generation") else "layers"
        if self.kind == "layers":
            self.read_layers(fields)
            return
        self.exports = Path(fields["exports"])
        if self.op == "texts":
            self.texts = Path(fields["input"]).read_text().splitlines()
        else:
            from safetensors.numpy import load_file

            self.ids, self.new_tokens = load_file(fields["input"])["input_ids"], fields["new_tokens"]
            self.file = fields.get("file")

    def read_layers(self, fields: dict):
        from safetensors.torch import load_file

        tensors = load_file(fields["input"])
        self.x = tensors["hidden_states"]
        self.mask = tensors.get("attention_mask")
        self.step = tensors.get("step")
        self.target, self.training = tensors.get("target"), fields.get("training")


PACKAGES = {
    "pytorch": "torch", "pytorch-compiled": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino",
    "llama.cpp": "llama-cpp-python",
}


def version(name: str) -> str:
    try:
        return metadata.version(PACKAGES[name])
    except metadata.PackageNotFoundError:
        return "not installed"  # loading a case will return the error


def make(name: str, kind: str, threads: int):
    # Imports only the requested library: each one starts its own threads, and takes memory.
    match name, kind:
        case "pytorch", "layers":
            from pytorch_peer import Eager as Peer
        case "pytorch-compiled", "layers":
            from pytorch_peer import Compiled as Peer
        case "onnxruntime", "layers":
            from onnxruntime_peer import OnnxRuntime as Peer
        case "openvino", "layers":
            from openvino_peer import OpenVino as Peer
        case "pytorch", "texts":
            from texts_peers import SentenceTransformers as Peer
        case "onnxruntime", "texts":
            from texts_peers import OnnxRuntime as Peer
        case "openvino", "texts":
            from texts_peers import OpenVino as Peer
        case "pytorch", "generation":
            from generation_peers import Transformers as Peer
        case "onnxruntime", "generation":
            from generation_peers import OnnxRuntime as Peer
        case "openvino", "generation":
            from generation_peers import OpenVino as Peer
        case "llama.cpp", "generation":
            from generation_peers import LlamaCpp as Peer
        case _:
            raise ValueError(f"{name} is not measured in {kind}")
    return Peer(threads)


def forget_peak():
    """Resets the system's count of peak resident memory."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the peak is then the whole process's


def peak_mb() -> float | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), None)


def timed(run) -> tuple[float, float | None]:
    """Returns the milliseconds, and for a generation the milliseconds to the first token."""
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start), getattr(run, "first_ms", None)


def write(path: Path, y):
    import numpy as np
    from safetensors.numpy import save_file

    y = y if isinstance(y, np.ndarray) else y.float().numpy()
    save_file({"output": np.ascontiguousarray(y, dtype=np.float32)}, path)


if __name__ == "__main__":
    main(sys.argv[1])
