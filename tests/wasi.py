"""Runs a test program for WASI 0.1 under wasmtime (`pip install wasmtime`): wasi.py PROGRAM [FILTER ..] [--skip NAME ..].

Each test runs in an instance of its own, because a panic ends the instance. Prints the outcome of each test and the counts."""

import os
import sys
import tempfile
import time
from pathlib import Path

from wasmtime import Config, Engine, ExitTrap, Linker, Module, Store, Trap, WasiConfig, WasmtimeError

program, *arguments = sys.argv[1:]
engine = Engine(Config())
module = Module.from_file(engine, program)
linker = Linker(engine)
linker.define_wasi()


def run(arguments, folder):
    """Returns the exit status, that of an abort after a panic, and what was printed."""
    output = Path(folder, "output")
    wasi = WasiConfig()
    wasi.argv = [program, *arguments]
    wasi.env = [*({"TMPDIR": folder} | dict(os.environ)).items()]
    wasi.preopen_dir("/", "/")
    wasi.stdout_file = wasi.stderr_file = str(output)
    store = Store(engine)
    store.set_wasi(wasi)
    try:
        linker.instantiate(store, module).exports(store)["_start"](store)
        status = 0
    except ExitTrap as exit:
        status = exit.code
    except (Trap, WasmtimeError):
        status = 134
    store.close()
    return status, output.read_text(errors="replace")


counts = {"ok": 0, "FAILED": 0, "ignored": 0}
failed = []
with tempfile.TemporaryDirectory() as folder:
    _, listed = run([*arguments, "--list", "--format", "terse"], folder)
    for name in (line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")):
        begin = time.monotonic()
        status, said = run([name, "--exact", "--nocapture", "--test-threads=1"], folder)
        outcome = "FAILED" if status else "ignored" if "1 ignored;" in said else "ok"
        counts[outcome] += 1
        print(f"test {name} ... {outcome} ({time.monotonic() - begin:.1f} s)", flush=True)
        if outcome == "FAILED":
            failed.append(name)
            print(said, flush=True)
print("test result: {ok} passed; {FAILED} failed; {ignored} ignored".format(**counts))
print("".join(f"    {name}\n" for name in failed), end="")
sys.exit(bool(failed))
