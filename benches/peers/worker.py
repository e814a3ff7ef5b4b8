"""A peer in a process of its own: answers the driver's lines of JSON, one line each.

    load    a case: checkpoint, input, op, precision, threads   -> settings
    check   computes once and writes the result to a file       -> nothing
    run     computes `warm` times, then `count` times measured  -> ms, a list; peak_mb, memory since it was loaded

Run as `worker.py NAME`; the driver does.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path


def main(name: str):
    # What libraries print goes to standard error; the protocol keeps the real output for itself.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields):
        print(json.dumps(fields), file=out, flush=True)

    threads = int(os.environ["OMP_NUM_THREADS"])
    peer = make(name, threads)
    answer(name=name, version=peer.version)
    run = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            match command.pop("do"):
                case "load":
                    run = None
                    gc.collect()
                    run = peer.load(Task(command))
                    forget_peak()
                    answer(settings=peer.settings)
                case "check":
                    write(Path(command["output"]), getattr(run, "check", run)())
                    answer()
                case "run":
                    for _ in range(command["warm"]):
                        run()
                    answer(ms=[timed(run) for _ in range(command["count"])], peak_mb=peak_mb())
        except Exception as error:  # the driver notes it and goes on with the other peers
            text = str(error).strip() or type(error).__name__
            answer(error=text.splitlines()[0][:300])


class Task:
    """A case as a worker sees it."""

    def __init__(self, fields: dict):
        from safetensors.torch import load_file

        self.op, self.precision = fields["op"], fields["precision"]
        self.checkpoint = Path(fields["checkpoint"])
        tensors = load_file(fields["input"])
        self.x = tensors["hidden_states"]
        self.mask = tensors.get("attention_mask")
        self.step = tensors.get("step")
        self.target, self.training = tensors.get("target"), fields.get("training")


def make(name: str, threads: int):
    # Only what is asked for is imported: each library brings its own threads.
    match name:
        case "pytorch":
            from pytorch_peer import Eager as Peer
        case "pytorch-compiled":
            from pytorch_peer import Compiled as Peer
        case "onnxruntime":
            from onnxruntime_peer import OnnxRuntime as Peer
        case "openvino":
            from openvino_peer import OpenVino as Peer
        case _:
            sys.exit(f"worker.py: no peer is called {name}")
    return Peer(threads)


def forget_peak():
    """Has the system count the most resident memory anew."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # then the peak is that of the whole process


def peak_mb() -> float | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM")), None)


def timed(run) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def write(path: Path, y):
    import torch
    from safetensors.torch import save_file

    y = torch.as_tensor(y)
    save_file({"output": y.float().contiguous()}, path)


if __name__ == "__main__":
    main(sys.argv[1])
