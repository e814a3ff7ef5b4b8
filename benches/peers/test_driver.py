"""Tests the driver without any peer installed: `python benches/peers/test_driver.py`."""

import importlib.util
import json
import math
import sys
import textwrap
import types
import unittest
from pathlib import Path

import cases
import machine
import report
import run
import spread
import workers


def entry(op="feed_forward", shape="8", precision="f32", failed=None, **medians):
    times = {name.replace("_", "-"): {"median_ms": ms} for name, ms in medians.items()}
    return {
        "id": f"{op}/m/{shape}/{precision}", "op": op, "model": "m", "shape": shape, "precision": precision,
        "times": times, "failed": failed or {}, "wrong": {},
    }


def worker(program: str, patience: float = 20) -> workers.Worker:
    """Returns a worker that runs a few lines of Python."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return workers.Worker("test", command, workers.environment(2, {}), patience)


class Cases(unittest.TestCase):
    def test_every_case_has_a_name_of_its_own_and_a_model(self):
        for quick in (False, True):
            models, found = cases.all_cases(["f32", "bf16", "int8"], None, quick)
            self.assertEqual(len({case.id for case in found}), len(found))
            self.assertEqual({case.model for case in found}, set(models))

    def test_the_whole_run_has_every_row_count_of_every_width(self):
        _, found = cases.all_cases(["f32"], None, quick=False)
        rows = [(case.model, case.batch) for case in found if case.op == "feed_forward"]
        self.assertEqual(len(rows), 40)
        self.assertIn(("500x2001", 1000), rows)

    def test_a_quick_run_is_part_of_the_whole(self):
        whole, quick = (cases.all_cases(["f32"], None, quick)[1] for quick in (False, True))
        self.assertLess(set(quick), set(whole))

    def test_trainings_have_a_case_for_each_variant(self):
        _, found = cases.all_cases(["f32", "bf16"], None, quick=False)
        ids = [case.id for case in found if case.op == "train_step"]
        self.assertIn("train_step/bert-block/8x128/f32", ids)
        self.assertIn("train_step/bert-block/8x128-dropout/f32", ids)
        self.assertIn("train_step/bert-block/8x128-dropout/bf16", ids)
        self.assertEqual(len(ids), 2 * len(cases.TRAININGS + cases.LONG_TRAININGS))
        self.assertEqual({case.drops for case in found if case.variant == "padded"}, {False})

    def test_whole_models_are_measured_in_all_sizes_and_texts_where_there_is_a_model_for_them(self):
        _, found = cases.all_cases(["f32", "bf16"], Path("minilm"), quick=False)
        ids = {case.id for case in found if case.is_whole}
        sizes = {f"{model}/{batch}x512" for model in ("gpt2-lm", "llama-0.5b") for batch in (1, 8)}
        generations = {f"generation/{size}/{precision}" for size in sizes for precision in ("f32", "bf16")}
        self.assertEqual(ids, generations | {"texts/minilm/200x256/f32", "texts/minilm/1x10-cold/f32"})
        _, without = cases.all_cases(["f32"], None, quick=False)
        self.assertNotIn("texts", {case.op for case in without})

    def test_codes_are_measured_where_they_are_asked_for(self):
        _, found = cases.all_cases([*cases.CODES, "int4"], Path("minilm"), quick=False)
        of_files = {f"generation/{model}/1x512/{codes}" for model in cases.CODED for codes in cases.CODES}
        self.assertEqual({case.id for case in found}, of_files | {f"generation/{model}/1x512/int4" for model in cases.ON_GRID})

    def test_patterns_select_by_id(self):
        _, found = cases.all_cases(["f32"], None, quick=False)
        self.assertEqual(cases.selected(found, []), found)
        self.assertEqual({case.op for case in cases.selected(found, ["step/gpt2-small", "prefill/"])}, {"step", "prefill"})


class Workers(unittest.TestCase):
    def test_answers_are_taken_line_by_line_however_they_arrive(self):
        asked = worker("""
            import sys, time
            print('{"version": "1"}', flush=True)
            for line in sys.stdin:
                sys.stdout.write('{"ms": '); sys.stdout.flush(); time.sleep(0.05)
                print('[1.5, 2]}', flush=True)
        """)
        self.addCleanup(asked.end)
        self.assertEqual(asked.ask(do="run"), {"ms": [1.5, 2]})
        self.assertEqual(asked.ask(do="run"), {"ms": [1.5, 2]})
        self.assertEqual(asked.version, "1")

    def test_a_worker_stands_still_between_questions(self):
        asked = worker("""
            import json, sys, threading
            spins = 0
            def spin():
                global spins
                while True: spins += 1
            threading.Thread(target=spin, daemon=True).start()
            print('{"version": "1"}', flush=True)
            for line in sys.stdin: print(json.dumps({"spins": spins}), flush=True)
        """)
        self.addCleanup(asked.end)
        asked.ask(do="run")
        path = f"/proc/{asked.process.pid}/stat"
        try:
            state = Path(path).read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            self.skipTest("needs /proc")
        self.assertEqual(state, "T")
        self.assertGreater(asked.ask(do="run")["spins"], 0)

    def test_an_error_is_a_failure_and_the_worker_goes_on(self):
        asked = worker("""
            import sys
            print('{"version": "1"}', flush=True)
            for line in sys.stdin: print('{"error": "no such thing"}' if "load" in line else '{}', flush=True)
        """)
        self.addCleanup(asked.end)
        with self.assertRaisesRegex(workers.Failure, "no such thing"):
            asked.ask(do="load")
        self.assertEqual(asked.ask(do="check"), {})

    def test_a_worker_that_ends_or_hangs_is_a_failure_and_is_started_again(self):
        for end in ("sys.exit()", "import time; time.sleep(60)"):
            asked = worker(f"""
                import sys
                print('{{"version": "1"}}', flush=True)
                for line in sys.stdin:
                    if "load" in line: {end}
                    print('{{}}', flush=True)
            """, patience=2)
            self.addCleanup(asked.end)
            with self.assertRaises(workers.Failure):
                asked.ask(do="load")
            self.assertEqual(asked.ask(do="check"), {})

    def test_threads_are_equal_for_all(self):
        found = workers.environment(3, {"MORE": "x"})
        self.assertEqual({found[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}, {"3"})
        self.assertEqual(found["MORE"], "x")

    def test_the_executable_is_that_of_the_target(self):
        def artifact(name, path):
            return json.dumps({"reason": "compiler-artifact", "target": {"name": name}, "executable": path})

        messages = "\n".join([artifact("ours", None), artifact("other", "/b"), artifact("ours", "/a"), '{"reason": "x"}'])
        self.assertEqual(workers.executable(messages, "ours"), "/a")
        with self.assertRaises(SystemExit):
            workers.executable(messages, "missing")


class Report(unittest.TestCase):
    def test_the_lead_is_over_the_best_peer_and_not_over_our_other_form(self):
        found = entry(candle_blocks=2.0, candle_blocks_plain=1.0, openvino=3.0, pytorch=9.0)
        self.assertEqual(report.best_peer(found), ("openvino", 3.0))
        self.assertEqual(report.lead(found), 1.5)

    def test_without_the_packed_form_the_plain_one_stands_for_us(self):
        self.assertEqual(report.lead(entry(candle_blocks_plain=4.0, openvino=3.0)), 0.75)
        self.assertIsNone(report.lead(entry(openvino=3.0)))
        self.assertIsNone(report.lead(entry(candle_blocks=3.0)))

    def test_the_table_shows_losses_and_what_was_not_measured(self):
        record = {
            "date": "2026-01-01", "threads": 2, "rounds": 3, "options": "", "peers": {
                name: {"version": "1", "settings": "s"} for name in ("candle-blocks", "openvino")
            },
            "machine": {"name": "m", "processor": "P", "cores": 2, "system": "S", "load_before": 0.0},
            "cases": [
                entry(shape="8", candle_blocks=2.0, openvino=1.0),
                entry(shape="16", candle_blocks=1.0, openvino=8.0, failed={"candle": "has none"}),
            ],
        }
        text = report.markdown(record)
        self.assertIn("| 8 | 2 | **1** | 0.50 |", text)
        self.assertIn("| 16 | 1 | **8** | 8.00 |", text)
        self.assertIn("Geometric mean 2.00, least 0.50.", text)
        self.assertIn("- candle: has none (feed_forward/m/16/f32)", text)

    def test_below_whole_models_stand_rates_and_memory(self):
        texts = entry(op="texts", candle_blocks=500.0, openvino=1000.0) | {"batch": 200, "variant": ""}
        texts["times"]["openvino"]["peak_mb"] = 530.4
        self.assertEqual(report.details(texts, ["candle-blocks", "openvino", "candle"]), {
            "texts per second": ["400", "200", None], "peak memory": [None, "530 MB", None],
        })
        first, behind = (entry(op="generation", candle_blocks=40.0) | {"batch": 8, "variant": variant} for variant in ("first", "next"))
        self.assertEqual(report.details(first, ["candle-blocks"]), {})
        self.assertEqual(report.details(behind, ["candle-blocks"])["tokens per second"], ["200"])
        self.assertEqual(report.details(entry(), ["candle-blocks"]), {})

    def test_the_geometric_mean_of_inverse_numbers_is_one(self):
        self.assertTrue(math.isclose(report.geometric_mean([4.0, 0.25, 1.0]), 1.0))

    def test_decoders_share_a_panel(self):
        record = {"cases": [entry(op="prefill"), entry(op="step"), entry(op="encoder")]}
        self.assertEqual([(title, len(found)) for title, found in report.plotted(record)], [("decoders f32", 2), ("encoder m f32", 1)])


@unittest.skipUnless(importlib.util.find_spec("torch"), "needs PyTorch")
class Whole(unittest.TestCase):
    def test_weights_on_a_grid_are_found_again_by_rounding(self):
        import checkpoints
        import torch

        drawn = torch.randn(6, 256, generator=torch.Generator().manual_seed(1))
        weight = checkpoints.on_grid(drawn).reshape(-1, 128)
        step = weight.abs().max(dim=1, keepdim=True).values / 8
        steps = weight / step
        self.assertTrue(torch.equal(steps, steps.round()) and torch.equal(step, step.half().float()))
        self.assertEqual({(low.item(), high.item()) for low, high in zip(steps.amin(1), steps.amax(1))}, {(-8.0, 7.0)})

    def test_tokens_are_judged_by_the_logits_for_all_before_them(self):
        import torch

        import whole

        class Successors:
            """The next integer is the most probable token, the one after it the second."""

            config = types.SimpleNamespace(vocab_size=50)

            def __call__(self, ids, past_key_values=None, logits_to_keep=0):
                cache = past_key_values or types.SimpleNamespace(crop=lambda length: None)
                logits = -((torch.arange(50) - ids[..., None] - 1) % 50).double()
                return types.SimpleNamespace(logits=logits, past_key_values=cache)

        likeliest = whole.Likeliest(Successors(), torch.tensor([[3, 4], [7, 8]]))
        right = torch.stack([torch.arange(5, 38), torch.arange(9, 42)])
        self.assertEqual(likeliest.gap(right.float()), 0.0)
        other = right.clone()
        other[1, 20:] += 1  # the second most probable once; the most probable ones after it
        deviation = torch.arange(50).double().std().item()
        self.assertAlmostEqual(likeliest.gap(other), 1 / deviation)
        for wrong in (right[:, :-1], right[:1], right + 50, right.float() * math.nan):
            self.assertEqual(likeliest.gap(wrong), math.inf)

    def test_texts_are_of_all_lengths_and_the_same_each_time(self):
        import whole

        texts = whole.passages(200)
        self.assertEqual(texts, whole.passages(200))
        self.assertEqual(sorted(len(text.split()) for text in texts), list(range(1, 201)))


class Spread(unittest.TestCase):
    def test_one_in_a_thousand_leaves_the_bound(self):
        # The density of Student's t distribution, by the trapezoidal rule.
        freedom, n = len(spread.SEEDS) - 1, 10_000
        factor = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
        points = [factor * (1 + (i * spread.STUDENT_T / n) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(n + 1)]
        within = 2 * spread.STUDENT_T / n * (sum(points) - (points[0] + points[-1]) / 2)
        self.assertAlmostEqual(within, 0.999, places=6)

    def test_the_bound_is_as_wide_as_the_seeds_are_apart(self):
        means = [2.0, 2.1] * 4
        error, allowed = spread.of_mean([1.0, 3.0, 2.15], means)
        self.assertAlmostEqual(error, 0.0)
        self.assertAlmostEqual(allowed, 5.408 * math.sqrt(8 / 7 * 0.05**2) * math.sqrt(9 / 8))
        self.assertAlmostEqual(spread.of_mean([1.0], [3.0 + 10 * mean for mean in means])[1], 10 * allowed)

    def test_a_loss_that_is_no_number_or_missing_is_outside(self):
        for losses in ([2.0, math.nan], []):
            self.assertEqual(spread.of_mean(losses, [2.0, 2.1] * 4)[0], math.inf)


class Fake:
    """A worker that answers immediately. `absent` cannot load anything."""

    version = "1"

    def __init__(self, name, settings="s"):
        self.name, self.settings, self.processes, self.asked = name, settings, 1, []

    def end(self):
        self.processes += 1

    def ask(self, **command):
        self.asked.append(command["do"])
        if command["do"] == "load" and self.name == "absent":
            raise workers.Failure("has none")
        count = command.get("count", 0)
        return {"settings": self.settings, "ms": [325.0] * count, "first_ms": [5.0] * count, "peak_mb": 7.0}


class Options:
    rounds, turn = 2, 2.0


class Driver(unittest.TestCase):
    def test_the_median_is_of_all_samples_and_the_turns_are_kept(self):
        found = run.summary({"ms": {"": [[1.0, 2.0, 3.0], [2.0, 9.0, 10.0]]}, "deviations": [(1e-7, 1e-5)]}, "")
        self.assertEqual((found["median_ms"], found["min_ms"], found["samples"]), (2.5, 1.0, 6))
        self.assertEqual(found["turns_ms"], [2.0, 9.0])

    def test_a_wrong_result_is_named_and_not_timed_and_a_training_begins_in_a_new_process(self):
        case = cases.Case("feed_forward", "384x1536", 4, 1, "f32")
        errors = iter([1e-7, 1e-3])
        prepared = {"task": {}, "output": "/nonexistent/output", "deviations": lambda: [(next(errors), 1e-5)]}
        crew = [Fake("right"), Fake("absent"), Fake("wrong")]
        [found] = run.measure(case, prepared, crew, {}, Options)
        self.assertEqual(set(found["times"]), {"right"})
        self.assertEqual(found["times"]["right"]["samples"], 12)
        self.assertEqual(found["wrong"], {"wrong": 1e-3})
        self.assertEqual(found["failed"], {"absent": "has none"})
        self.assertEqual([worker.processes for worker in crew], [1, 1, 1])
        prepared["deviations"] = lambda: [(0.0, 1e-5), (2e-3, 1e-3)]
        training = cases.Case("train_step", "bert-block", 8, 128, "f32", "dropout")
        [found] = run.measure(training, prepared, crew, {}, Options)
        self.assertEqual(found["wrong"], {"right": 2e-3, "wrong": 2e-3})
        self.assertEqual([worker.processes for worker in crew], [2, 2, 2])

    def test_a_generation_gives_a_line_for_the_first_token_and_one_for_those_behind(self):
        case = cases.Case("generation", "gpt2-lm", 8, 512, "f32")
        prepared = {"task": {}, "output": "/nonexistent/output", "deviations": lambda: [(0.0, 1e-5)]}
        crew = [Fake("right"), Fake("absent")]
        first, behind = run.measure(case, prepared, crew, {}, Options)
        self.assertEqual(crew[0].asked, ["load", "check", "run", "run"])
        self.assertEqual([first["id"], behind["id"]], ["generation/gpt2-lm/8x512-first/f32", "generation/gpt2-lm/8x512-next/f32"])
        self.assertEqual((first["times"]["right"]["median_ms"], behind["times"]["right"]["median_ms"]), (5.0, 10.0))
        self.assertEqual(behind["times"]["right"]["peak_mb"], 7.0)
        self.assertEqual(first["failed"], {"absent": "has none"})

    def test_each_cold_start_is_a_process_of_its_own_and_loading_counts(self):
        case = cases.Case("texts", "minilm", 1, 10, "f32", "cold")
        prepared = {"task": {}, "output": "/nonexistent/output", "deviations": lambda: [(0.0, 1e-5)]}
        crew = [Fake("right")]
        [found] = run.measure(case, prepared, crew, {}, Options)
        self.assertEqual(crew[0].asked, ["load", "check", "load", "run", "load", "run"])
        self.assertEqual(crew[0].processes, 4)
        self.assertLess(found["times"]["right"]["median_ms"], 325.0)  # by the driver's clock, not the worker's

    def test_every_case_has_a_tolerance(self):
        _, found = cases.all_cases(["f32", "bf16", "int8"], Path("minilm"), quick=False)
        allowed = {(case.op, case.precision): run.tolerance(case) for case in found}
        self.assertEqual(allowed["encoder", "f32"], 1e-5)
        self.assertEqual((allowed["train_step", "bf16"], allowed["train_step", "f32"]), (5e-4, 1e-5))
        self.assertEqual((allowed["generation", "bf16"], allowed["generation", "f32"]), (0.2, 1e-4))

    def test_a_peer_has_the_settings_of_all_its_cases(self):
        case = cases.Case("feed_forward", "384x1536", 4, 1, "f32")
        prepared = {"task": {}, "output": "/nonexistent/output", "deviations": lambda: [(0.0, 1e-5)]}
        peers = {}
        for settings in ("eager", "generate", "eager"):
            run.measure(case, prepared, [Fake("right", settings)], peers, Options)
        self.assertEqual(peers["right"]["settings"], "eager; generate")

    def test_a_processor_gives_a_file_name(self):
        self.assertEqual(machine.short("AMD EPYC 9B14 96-Core Processor"), "amd-epyc-9b14-96-core")
        self.assertEqual(machine.short("Intel(R) Xeon(R) CPU @ 2.20GHz"), "intel-xeon-2-20ghz")


if __name__ == "__main__":
    unittest.main()
