"""Worker processes for the driver: started, queried one at a time, stopped while the others are measured."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

PYTHON_PEERS = ["pytorch", "pytorch-compiled", "onnxruntime", "openvino", "llama.cpp"]
CANDLE = "candle"
OURS = {"candle-blocks": "packed", "candle-blocks-plain": "plain"}
NAMES = [*OURS, CANDLE, *PYTHON_PEERS]


class Failure(Exception):
    """The worker cannot answer a query. The others can continue."""


class Worker:
    """A peer. Between queries the process is stopped by the system, so that no thread spins."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], patience: float):
        self.name, self.command, self.environment, self.patience = name, command, environment, patience
        self.process, self.version, self.pending = None, None, b""

    def start(self):
        self.pending = b""
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment, bufsize=0
        )
        hello = self.receive()
        self.version = hello["version"]
        self.pause()

    def ask(self, **command) -> dict:
        if self.process is None:
            self.start()
        os.kill(self.process.pid, signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            answer = self.receive()
        except BrokenPipeError:
            self.end()
            raise Failure("the process ended") from None
        self.pause()
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def receive(self) -> dict:
        while b"\n" not in self.pending:
            ready, _, _ = select.select([self.process.stdout], [], [], self.patience)
            if not ready:
                self.end()
                raise Failure(f"no answer in {self.patience:.0f} s")
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                self.end()
                raise Failure("the process ended")
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return json.loads(line)

    def pause(self):
        """Returns when every thread has stopped, so that the next worker's turn begins on an idle machine."""
        os.kill(self.process.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.end()
            raise Failure("the process ended")

    def end(self):
        """Ends the process. The next query starts a new one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


def environment(threads: int, changes: dict[str, str]) -> dict[str, str]:
    """Sets the same number of threads for all libraries."""
    variables = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"]
    return os.environ | {name: str(threads) for name in variables} | {"HF_HUB_OFFLINE": "1"} | changes


def built(folder: Path, arguments: list[str], target: str) -> str:
    """Builds with cargo in `folder`, and returns the path of the executable with this name."""
    command = ["cargo", *arguments, "--message-format=json"]
    print(f"building {target}: (cd {folder}; {' '.join(command[:-1])})", file=sys.stderr)
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{target}: cargo fails in {folder}; its messages are above")
    return executable(done.stdout, target)


def executable(messages: str, target: str) -> str:
    """Returns the target's last executable in cargo's lines of JSON."""
    found = None
    for line in messages.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == target:
            found = message.get("executable") or found
    if found is None:
        sys.exit(f"{target}: cargo built no executable of this name")
    return found


def make(names: list[str], threads: int, patience: float, compile_mode: str) -> list[Worker]:
    """Returns a worker for each name, and builds the Rust workers first. No worker is started yet."""
    workers = []
    ours = None
    for name in names:
        changes = {}
        if name in OURS:
            ours = ours or built(ROOT, ["bench", "--bench", "ours", "--features", "text", "--no-run", "--locked"], "ours")
            command = [ours, OURS[name]]
        elif name == CANDLE:
            # In a separate directory: with other flags, this crate would be rebuilt each time.
            folder = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
            arguments = ["build", "--release", "--locked", "--target-dir", str(Path(folder) / "candle-peer")]
            command = [built(HERE / "candle", arguments, "candle-peer")]
        else:
            command = [sys.executable, str(HERE / "worker.py"), name]
            changes = {"PEERS_COMPILE_MODE": compile_mode}
        workers.append(Worker(name, command, environment(threads, changes), patience))
    return workers
