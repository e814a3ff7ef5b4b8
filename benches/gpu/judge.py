"""Asks PyTorch itself on the device: transformers' model of every family, in f32, on the inputs of the committed fixtures. Its errors
against float64 say how far a GPU is from the fixtures, whose bounds come from PyTorch on a CPU.

    python3 benches/gpu/judge.py [cuda|cpu] [FAMILY..]    # prints a line for each stack
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FAMILIES = ROOT / "weights" / "families"


def run(options, seconds: float) -> dict:
    """Returns each stack's errors, from processes that take shares of the families."""
    begin, end, found = time.monotonic(), time.monotonic() + seconds, {"stacks": [], "left_out": []}
    if not FAMILIES.is_dir():
        return found | {"left_out": [f"{FAMILIES} is not there"], "seconds": 0.0}
    names = sorted(folder.name for folder in FAMILIES.iterdir())
    n = max(1, options.processes // 2)
    command = [sys.executable, __file__, options.device]
    quiet = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    processes = [subprocess.Popen([*command, *names[i::n]], env=quiet, **pipes) for i in range(n)]
    log = []
    for i, process in enumerate(processes):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, end - time.monotonic()))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            found["left_out"].append(f"process {i}: not at its end")
        text = process.stdout.read()
        log.append(text)
        for line in text.splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                found["left_out" if "error" in entry else "stacks"].append(entry if "error" not in entry else f"{entry['name']}: {entry['error']}")
    (options.out / "judge.txt").write_text("\n".join(log))
    return found | {"seconds": time.monotonic() - begin}


def main(device: str, *names: str):
    sys.path.insert(0, str(ROOT / "weights"))
    import torch
    from fixtures import capture
    from fixtures.families import family_of

    torch.set_default_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in names:
        directory = FAMILIES / name
        try:
            parts = family_of(capture.model_type_of(directory)).parts
            for part in parts:
                print(json.dumps(judged(torch, capture, directory, part, device)), flush=True)
        except (Exception, SystemExit) as error:  # another version of transformers lacks some families
            text = " ".join((str(error) or type(error).__name__).split())
            print(json.dumps({"name": name, "error": text[:200]}), flush=True)


def judged(torch, capture, directory: Path, part, device: str) -> dict:
    """Returns a stack's largest errors as shares of the bounds, which come from PyTorch's CPU run in the fixture."""
    from fixtures import self_test, tensor_file
    from fixtures.drive import Inputs

    file = directory / (f"fixture.{part.name}.safetensors" if part.name else "fixture.safetensors")
    expected = {tensor: value.cpu() for tensor, value in tensor_file.read(file).items()}
    known = Inputs.__dataclass_fields__
    given = {name: value.to(device) for name, value in expected.items() if name in known}
    gradients = "grad_output" in given
    inputs = Inputs(**({"grad_output": torch.zeros(())} | given))
    with torch.device("cpu"):
        model = capture.load(directory, torch.float32, tensor_file.metadata(file)["attn_implementation"])
    model = model.to(device)
    stages = capture.run(model, part, inputs, gradients)
    with torch.device("cpu"):
        stages.outputs = {name: value.cpu() for name, value in stages.outputs.items()}
        stages.gradients = {name: value.cpu() for name, value in stages.gradients.items()}
        results = capture.results(model.cpu(), part, stages, directory)
        of_gradients = {name: value for name, value in results.items() if name.startswith("grads.")}
        of_stages = {name: value for name, value in results.items() if name not in of_gradients}
        shares = {"stages": self_test.worst(of_stages, expected), "gradients": self_test.worst(of_gradients, expected)}
    return {"name": f"{directory.name} {part.name or ''}".strip(), **shares}


if __name__ == "__main__":
    main(*sys.argv[1:])
