"""Tests the kit with canned results, without cargo, a GPU or PyTorch: `python3 benches/gpu/test_kit.py`."""

import argparse
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import each
import report
import run
import times

# Stands in for a test program: lists its tests, and runs one.
PROGRAM = """#!/bin/sh
case "$*" in
  --list*) printf 'ops::rows: test\\nops::sums: test\\nops::race: test\\nhost::words: test\\nhangs: test\\nslow: test\\ninstruction_sets::all: test\\n' ;;
  *ops::rows*hangs*)
    echo 'ON THE CPU: words'; echo 'LEFT OUT: layers in f64: the device has no f64'
    printf 'test ops::rows ... ok\\ntest host::words ... ok\\ntest ops::sums ... FAILED\\ntest ops::race ... FAILED\\n'; sleep 60 ;;
  *ops::rows*|*ops::race*|*slow*) echo 'test result: ok. 1 passed; 0 failed' ;;
  *ops::sums*) echo "thread 'ops::sums' panicked at tests/layers/ops.rs:7:5:"; echo 'the sum is 3, not 4'; exit 101 ;;
  *hangs*) sleep 60 ;;
  *rows_one_by_one*)
    case $CANDLE_BLOCKS_ROWS in
      0/1/0) printf 'AT\\t0\\tbert\\t-\\tf32\\nROW\\tbert\\t-\\tf32\\t7\\t1.2\\t0.40\\t9\\t1.1\\t0.30\\twithin the rule\\nAT\\t1\\tbert\\t-\\tf16\\n'; kill -9 $$ ;;
      *) printf 'AT\\t2\\tbert\\t-\\tbf16\\nROW\\tbert\\t-\\tbf16\\t7\\t9.2\\t2.50\\t0\\t-\\t-\\tFAIL\\nPANIC\\tgpt2\\t-\\tf32\\tno kernel\\nEND\\n' ;;
    esac ;;
esac
"""


def ours(ms, **more):
    return {"ms": ms, "deviation": 3e-7, "operations": 33, "uploads": [0, 0], "downloads": [1, 4], "held_mb": None, "sampled_mb": 700.0} | more


def record(**changes):
    entries = [
        {"name": "forward bert-base 32 x 128 f32", "ours": ours([2.0, 1.0, 9.0]), "eager": {"ms": [3.0], "held_mb": 512.5, "sampled_mb": 1024.0}, "compiled": {"ms": [1.0]}},
        {"name": "train bert-base 8 x 128 f32", "ours": ours([4.0]), "eager": {"ms": [8.0]}, "compiled": {"error": "no compiler"}},
        {"name": "decode llama-8b 1 x 512 f32", "ours": ours([1234.5]), "compiled": {"error": "no compiler"}},
    ]
    return {
        "date": "2026-01-01", "options": "cuda", "device": "cuda", "smoke": False, "left_out": [],
        "machine": {"device": "NVIDIA H100", "environment": "A=b|c"}, "cases": entries,
        "tests": [tested("training")],
    } | changes


def tested(program: str, **changes) -> dict:
    counts = {"passed": 5, "failed": 0, "hung": 0, "on_cpu": 2, "not_begun": 1, "again": [], "failures": {}, "together": "all"}
    return {"program": program, "seconds": 61.4, "log": f"{program}.txt", "left_out": ["layers in f64: the device has no f64"]} | counts | changes


class Tests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name) / "layers.txt"
        self.program = Path(folder.name) / "layers"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)

    def test_what_does_not_pass_among_threads_runs_alone(self):
        with mock.patch.object(each, "PATIENCE", 0.5):
            found = each.tests(self.program, self.log, 4, 3, dict(os.environ), [])
        self.assertEqual((found["passed"], found["failed"], found["hung"], found["not_begun"], found["on_cpu"]), (4, 1, 1, 0, 1))
        self.assertEqual(found["failures"]["ops::sums"], "tests/layers/ops.rs:7:5: the sum is 3, not 4")
        self.assertEqual(found["failures"]["ops::race, among threads only"], "passes in a process of its own")
        self.assertEqual((found["again"], found["together"]), (["slow"], "4 before the end of their time"))
        self.assertEqual(found["left_out"], ["layers in f64: the device has no f64"])
        self.assertNotIn("instruction_sets", self.log.read_text())
        if sys.platform == "linux":
            self.assertIn("thread", found["failures"]["hangs"])

    def test_only_the_named_tests_run(self):
        found = each.tests(self.program, self.log, 20, 1, dict(os.environ), ["rows"])
        self.assertEqual((found["passed"], found["failures"]), (1, {}))

    def test_conformance_goes_on_after_a_row_that_ends_the_process(self):
        found = each.conformance(self.program, self.log, 20, 1, dict(os.environ))
        self.assertEqual(len(found["rows"]), 2)
        self.assertEqual(found["unfinished"], 0)
        self.assertEqual(found["wrong"]["bert - bf16"], "share of the bound 2.50, of gradients -")
        self.assertEqual(found["wrong"]["gpt2 - f32"], "panic: no kernel")
        self.assertIn("the process ended (-9)", found["wrong"]["shard 0 at bert - f16"])
        text = report.markdown(record(conformance=found))
        self.assertIn("| bf16 | 1 | 1 FAIL | 2.50 | 0.00 |", text)
        self.assertIn("- conformance: gpt2 - f32: panic: no kernel", text)
        self.assertIn("**Conformance:** 2 rows, 3 wrong.", text)


class Processes(unittest.TestCase):
    def test_an_answer_is_the_last_line(self):
        program = "print('noise'); print('{\"ms\": [1]}')"
        self.assertEqual(times.answer([sys.executable, "-c", program], dict(os.environ), 20), {"ms": [1]})

    def test_what_has_no_answer_says_why(self):
        for program, expected in [
            ("import sys; sys.exit('noise\\nError: wrong: 2e-1 away\\n\\nCaused by:\\n    rounding')", r"^wrong: 2e-1 away Caused by: rounding \(exit status 1\)$"),
            ("import sys; sys.exit('one\\nValueError: two')", r"^ValueError: two \(exit status 1\)$"),
            ("pass", r"^ ?\(no answer\)$"),
            ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
            ("import time; time.sleep(60)", "not at its end after 2 s"),
        ]:
            found = times.answer([sys.executable, "-c", program], dict(os.environ), 2)
            self.assertRegex(found["error"], expected)

    def test_a_rehearsal_is_never_inherited(self):
        with mock.patch.dict(os.environ, {"CANDLE_BLOCKS_REHEARSE": "metal"}):
            self.assertNotIn("CANDLE_BLOCKS_REHEARSE", run.environment("cuda"))


class Machine(unittest.TestCase):
    """Uses fake programs that print the same output as a driver's or a Mac's."""

    def on(self, **programs: str):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, script in programs.items():
            path = Path(folder.name) / name.replace("_smi", "-smi")
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        changes = mock.patch.dict(os.environ, {"PATH": f"{folder.name}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": "3,1"})
        changes.start()
        self.addCleanup(changes.stop)

    def test_an_nvidia_gpu_is_the_first_of_those_that_are_visible(self):
        nvidia_smi = """
            [ $# = 0 ] && { echo '| NVIDIA-SMI 580.65   Driver Version: 580.65   CUDA Version: 13.0  |'; exit; }
            case "$*" in
              '-i 3 --query-gpu=name '*) echo 'NVIDIA H100' ;;
              '-i 3 --query-gpu=driver_version '*) echo 580.65 ;;
              *) echo 'Field is not a valid field to query.'; exit 2 ;;
            esac"""
        self.on(nvidia_smi=nvidia_smi)
        found = run.describe("cuda")
        self.assertEqual((found["device"], found["driver_version"], found["CUDA"]), ("NVIDIA H100", "580.65", "the driver's 13.0"))
        self.assertNotIn("compute_cap", found)
        self.assertIn("CUDA_VISIBLE_DEVICES=3,1", found["environment"])
        self.assertRegex(found["candle"], r"^\d+\.\d+")

    def test_a_mac_is_named_without_its_serial_number(self):
        displays = "cat <<'END'\n    Apple M4 Pro:\n      Chipset Model: Apple M4 Pro\n      Total Number of Cores: 20\n      Metal Support: Metal 4\nEND"
        self.on(system_profiler=displays, sw_vers="echo 26.1", sysctl='[ "$2" = hw.memsize ] && echo 25769803776 || echo Apple M4 Pro')
        found = run.describe("metal")
        self.assertEqual([found[name] for name in ("device", "Total Number of Cores", "Metal Support")], ["Apple M4 Pro", "20", "Metal 4"])
        self.assertEqual((found["macOS"], found["memory"]), ("26.1", "25769803776 bytes"))

    def test_memory_is_sampled_while_another_process_runs(self):
        self.on(nvidia_smi="for mib in 100 100 600 300; do echo $mib; done; exec sleep 60")
        with times.Memory("cuda") as memory:
            while len(memory.samples) < 4:
                time.sleep(0.01)
        self.assertAlmostEqual(memory.peak_mb(), 500 * 1.048576)

    def test_memory_that_is_not_told_is_none(self):
        self.on(nvidia_smi="echo '[N/A]'")
        with times.Memory("cuda") as memory:
            pass
        self.assertIsNone(memory.peak_mb())


class Cases(unittest.TestCase):
    def test_every_case_has_a_name_of_its_own_and_a_tolerance(self):
        for smoke in (False, True):
            found = times.cases(argparse.Namespace(device="cuda", smoke=smoke, compile="default"))
            self.assertEqual(len({case["name"] for case in found}), 7)
            self.assertEqual({case["tolerance"] for case in found if case["dtype"] == "f32"}, {1e-5})


class Report(unittest.TestCase):
    def test_the_table_has_medians_ratios_and_what_was_not_measured(self):
        text = report.markdown(record())
        self.assertIn("# candle-blocks on NVIDIA H100 (cuda)", text)
        self.assertIn("| forward bert-base 32 x 128 f32 | 2 | 3 | 1 | 1.50 | 0.50 | 3e-07 |", text)
        self.assertIn("| train bert-base 8 x 128 f32 | 4 | 8 | – | 2.00 | – | 3e-07 |", text)
        self.assertIn("| decode llama-8b 1 x 512 f32 | 1234 | – | – | – | – | 3e-07 |", text)
        self.assertIn("| forward bert-base 32 x 128 f32 | 33 | 0 | 1 (4 B) | 700 / – | 1024 / 512 | – / – |", text)
        self.assertIn("**Speed:** PyTorch's time over ours: eager 1.50 to 2.00, compiled 0.50 to 0.50;", text)
        self.assertIn("**Tests:** 5 passed (2 of them are the CPU's), 0 failed, 0 hung.", text)
        self.assertIn("**Results:** 3 of 3 cases", text)
        self.assertIn("- environment: A=b|c\n", text)
        self.assertNotIn("## Failed", text)
        self.assertEqual(report.failures(record()), [])

    def test_what_was_left_out_is_said_once_for_all_cases(self):
        text = report.markdown(record(left_out=["PyTorch: python has no torch"]))
        self.assertIn("- PyTorch: python has no torch\n", text)
        self.assertIn("- PyTorch compiled: no compiler (train bert-base 8 x 128 f32, decode llama-8b 1 x 512 f32)", text)
        self.assertIn("- layers in f64: the device has no f64 (tests: training)", text)
        self.assertIn("Nothing.", report.markdown(record(cases=[], tests=[])))

    def test_a_wrong_result_and_a_failed_test_stand_first(self):
        test = tested("layers", failed=1, failures={"ops::sums": "the sum is 3, not 4"})
        entry = {"name": "forward m f32", "ours": {"error": "wrong: 2e-1 away (exit status 1)"}, "eager": {"ms": [3.0]}}
        found = record(tests=[test], cases=[entry])
        text = report.markdown(found)
        self.assertEqual(report.failures(found), ["layers: ops::sums", "forward m f32: wrong: 2e-1 away (exit status 1)"])
        self.assertLess(text.index("wrong: 2e-1 away"), text.index("## Machine"))
        self.assertIn("the sum is 3, not 4", text)
        self.assertIn("| forward m f32 | – | 3 | – | – | – | failed |", text)
        self.assertIn("**Results:** 0 of 1 cases", text)

    def test_pytorch_on_the_device_is_listed_by_its_largest_shares(self):
        stacks = [{"name": name, "stages": share, "gradients": 0.5} for name, share in (("bert", 0.4), ("gemma3", 1.6))]
        text = report.markdown(record(judge={"stacks": stacks, "left_out": ["aimv2: not known"], "seconds": 3.0}))
        self.assertIn("| stages | 2 | 1 | gemma3 1.60; bert 0.40 |", text)
        self.assertIn("- PyTorch on the device: aimv2: not known", text)

    def test_what_is_not_of_a_gpu_says_so(self):
        text = report.markdown(record(device="cpu", smoke=True))
        self.assertIn("**No GPU.**", text)
        self.assertIn("the times mean nothing", text)


if __name__ == "__main__":
    unittest.main()
