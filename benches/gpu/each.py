"""Runs a program's tests in threads of one process, as `cargo test` does, and each test that did not pass there once more in a process
of its own: after an error of the device that ends a process, and beside a test that hangs, the others still answer."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# They compute on the CPU, whatever the device.
REHEARSALS = ["rehearsal_of_all::", "without_a_device::", "as_on_cuda", "instruction_sets"]
# A test alone that has not ended after this many seconds is taken to hang.
PATIENCE = 40
# The share of the time that the tests in one process may take.
TOGETHER = 0.6
# `tests/shared/device.rs` prints this for a test that is the CPU's by its nature.
HOSTS = "ON THE CPU: "


def output(command: list[str], end: float, variables: dict[str, str]) -> tuple[int | None, str]:
    """Returns the exit status, or none if the process was killed at the end of the time, and the output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen([str(part) for part in command], env=variables, start_new_session=True, **pipes)
    try:
        text, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
        return process.returncode, text
    except subprocess.TimeoutExpired:
        seen = whereabouts(process.pid)
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        return None, f"{text}\n{seen}"


def whereabouts(pid: int) -> str:
    """Returns what Linux tells of a process's threads, for a process that hangs: name, state, kernel function, system call."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")) if sys.platform == "linux" else []:
        try:
            state = re.search(r"^State:\s*(.*)$", (task / "status").read_text(), re.MULTILINE)
            told = [(task / name).read_text().strip() for name in ("comm", "wchan", "syscall")]
            lines.append(f"thread {task.name} {told[0]}: {state[1] if state else '?'}, in {told[1] or '?'}, system call {told[2][:60]}")
        except OSError:
            continue
    return "\n".join(lines)


def cause(text: str) -> str:
    """Returns a panic's first words, or the end of the output."""
    found = re.search(r"panicked at ([^\n]*)\n(.*?)(?=\nnote: |\n\n|\Z)", text, re.DOTALL)
    return " ".join(f"{found[1]} {found[2]}".split())[:300] if found else " ".join(text.split())[-300:]


def names_of(program: Path, end: float, variables: dict[str, str]) -> list[str]:
    status, listed = output([program, "--list", "--format", "terse"], end, variables)
    if status != 0:
        raise SystemExit(f"{program} does not start: {listed.strip()[-600:]}")
    return re.findall(r"^(.+): test$", listed, re.MULTILINE)


def at_once(n: int, worker):
    """Runs a worker in so many threads."""
    threads = [threading.Thread(target=worker, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tests(program: Path, log: Path, seconds: float, processes: int, variables: dict[str, str], only: list[str]) -> dict:
    begin = time.monotonic()
    end = begin + seconds
    names = names_of(program, end, variables)
    wanted = [name for name in names if not any(part in name for part in REHEARSALS) and (not only or any(part in name for part in only))]
    file = log.open("w")
    # Standard error has the lines of `cpu_only`, and each name of a test in the list must be given whole.
    status, text = output([program, "--exact", *wanted], begin + TOGETHER * seconds, variables)
    file.write(text)
    verdicts = dict(re.findall(r"^test (\S+) \.\.\. (ok|FAILED)$", text, re.MULTILINE))
    found = {name: "passed" for name in wanted if verdicts.get(name) == "ok"}
    failures, alone, waiting, lock = {}, [], queue.SimpleQueue(), threading.Lock()
    for name in wanted:
        if name not in found:
            waiting.put(name)

    def worker(_):
        while time.monotonic() < end:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            command = [program, "--exact", name, "--nocapture", "--test-threads=1"]
            code, said = output(command, min(end, time.monotonic() + PATIENCE), variables)
            passed = code == 0 and re.search(r"^test result: ok\. 1 passed", said, re.MULTILINE)
            with lock:
                found[name] = "passed" if passed else "hung" if code is None else "failed"
                file.write(f"\n{found[name]} in a process of its own: {name}\n{said}\n")
                file.flush()
                if not passed:
                    failures[name] = cause(said)
                elif verdicts.get(name) == "FAILED":
                    failures[f"{name}, among threads only"] = "passes in a process of its own"
                else:
                    alone.append(name)

    at_once(processes, worker)
    file.close()
    whole = log.read_text(errors="replace")
    count = {verdict: list(found.values()).count(verdict) for verdict in ("passed", "failed", "hung")}
    return count | {
        "program": program.name,
        "together": "all" if status is not None else f"{len(verdicts)} before the end of their time",
        "on_cpu": whole.count(HOSTS),
        "not_begun": len(wanted) - len(found),
        "again": sorted(alone),
        "failures": dict(sorted(failures.items())),
        "left_out": sorted(set(re.findall(r"LEFT OUT: (.+)", whole))),
        "seconds": time.monotonic() - begin,
        "log": log.name,
    }


def conformance(program: Path, log: Path, seconds: float, processes: int, variables: dict[str, str]) -> dict:
    """Computes the conformance table in shards. One whose process ends is continued after the row that ended it."""
    begin = time.monotonic()
    end = begin + seconds
    lock, rows, wrong, ended = threading.Lock(), [], {}, []
    file = log.open("w")

    def shard(i: int):
        start = 0
        while time.monotonic() < end:
            own = {"CANDLE_BLOCKS_ROWS": f"{i}/{processes}/{start}"}
            status, text = output([program, "--exact", "rows_one_by_one", "--ignored", "--nocapture", "--test-threads=1"], end, variables | own)
            at = re.findall(r"^AT\t(\d+)\t(.*)", text, re.MULTILINE)
            with lock:
                file.write(text)
                file.flush()
                for line in text.splitlines():
                    cells = line.split("\t")
                    if cells[0] == "ROW":
                        rows.append(cells[1:])
                        if cells[-1] == "FAIL":
                            wrong[" ".join(cells[1:4])] = f"share of the bound {cells[6]}, of gradients {cells[9]}"
                    elif cells[0] == "PANIC":
                        wrong[" ".join(cells[1:4])] = f"panic: {cells[4][:300]}"
                if re.search(r"^END$", text, re.MULTILINE):
                    ended.append(i)
                    return
                where = at[-1][1].replace("\t", " ") if at else "the start"
                wrong[f"shard {i} at {where}"] = f"the process ended ({status}): {' '.join(text.splitlines()[-1:])[-200:]}"
            if not at or int(at[-1][0]) < start:
                return
            start = int(at[-1][0]) + 1

    at_once(processes, shard)
    file.close()
    return {
        "rows": rows,
        "wrong": dict(sorted(wrong.items())),
        "unfinished": processes - len(ended),
        "seconds": time.monotonic() - begin,
        "log": log.name,
    }
