"""Runs a program's tests, each in a process of its own: after an error of the device that ends a process, and beside a test that
hangs, the others still answer."""

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
# A test that has not ended after this many seconds is taken to hang, is looked at, and runs once more.
PATIENCE = 25
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
    waiting, found, lock = queue.SimpleQueue(), {}, threading.Lock()
    wanted = [name for name in names if not any(part in name for part in REHEARSALS) and (not only or any(part in name for part in only))]
    for name in wanted:
        waiting.put((name, 1))
    file = log.open("w")

    def worker(_):
        while time.monotonic() < end:
            try:
                name, attempt = waiting.get_nowait()
            except queue.Empty:
                return
            started = time.monotonic()
            command = [program, "--exact", name, "--nocapture", "--test-threads=1"]
            status, text = output(command, min(end, started + PATIENCE), variables)
            if status is None and attempt == 1 and time.monotonic() < end:
                waiting.put((name, 2))
            passed = status == 0 and re.search(r"^test result: ok\. 1 passed", text, re.MULTILINE)
            verdict = "passed" if passed else "hung" if status is None else "failed"
            with lock:
                found[name] = {"verdict": verdict, "attempt": attempt, "text": text, "on_cpu": HOSTS in text}
                file.write(f"{verdict} {name} {time.monotonic() - started:.1f} s{' (second attempt)' if attempt > 1 else ''}\n")
                if verdict != "passed":
                    file.write(f"{text}\n")
                file.flush()

    at_once(processes, worker)
    file.close()
    count = {verdict: sum(test["verdict"] == verdict for test in found.values()) for verdict in ("passed", "failed", "hung")}
    failures = {name: cause(test["text"]) for name, test in sorted(found.items()) if test["verdict"] != "passed"}
    return count | {
        "program": program.name,
        "on_cpu": sum(test["on_cpu"] and test["verdict"] == "passed" for test in found.values()),
        "not_begun": len(wanted) - len(found),
        "again": sorted(name for name, test in found.items() if test["attempt"] > 1),
        "failures": failures,
        "left_out": sorted({said for test in found.values() for said in re.findall(r"LEFT OUT: (.+)", test["text"])}),
        "seconds": time.monotonic() - begin,
        "log": log.name,
    }


def threads(program: Path, log: Path, seconds: float, variables: dict[str, str]) -> dict:
    """Runs a program as `cargo test` does, in threads of one process. candle gives each host thread a stream of its own, and all
    threads one handle of cuBLAS."""
    begin = time.monotonic()
    skipped = [word for part in REHEARSALS for word in ("--skip", part)]
    status, text = output([program, *skipped], begin + seconds, variables)
    with log.open("a") as file:
        file.write(text)
    counts = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", text, re.MULTILINE)
    passed, failed = map(int, counts[-1]) if counts else (0, 0)
    failures = dict.fromkeys(re.findall(r"^test (\S+) \.\.\. FAILED", text, re.MULTILINE), "")
    if not counts:
        failures["the process"] = f"no result ({status}): {cause(text)}"
    return {
        "program": f"{program.name} in threads",
        "passed": passed, "failed": failed, "hung": 0, "on_cpu": text.count(HOSTS), "not_begun": 0,
        "again": [], "failures": failures, "left_out": [], "seconds": time.monotonic() - begin, "log": log.name,
    }  # fmt: skip


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
