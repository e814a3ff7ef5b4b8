"""Compares this crate's speed with its peers' on the same shapes, interleaved in one run. benches/README.md explains
the method.

    python benches/peers/run.py --quick
    python benches/peers/run.py --minilm DIR
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path

import machine
import report
import workers
from cases import CODES, NEW_TOKENS, Case, Model, all_cases, selected

HERE = Path(__file__).resolve().parent
RECORD = HERE.parent / "record"

# The modules that the reference needs: transformers' own layers in float64.
REFERENCE_NEEDS = ("safetensors", "torch", "transformers")

# The allowed distance from float64: root mean square of the error divided by the result's. Far above rounding errors
# (f32 1e-7, bf16 0.006, here), far below the error from a wrong activation, norm or mask (above 1e-4 and 0.05).
TOLERANCE = {"f32": 1e-5, "f16": 0.01, "bf16": 0.05, "int8": 0.1}
# A loss is a mean over all elements, in which most rounding errors cancel (bf16 1e-5 to 6e-5).
OF_LOSSES_IN_BF16 = 5e-4
# For tokens, the largest of hundreds of distances, each between two logits (whole.py): for Llama with 24 blocks in
# bf16, transformers' own is 0.09. Without positions, or with another prompt, it is at least 1.4. For quantized files
# the reference has the dequantized weights; activations are rounded to a byte.
OF_TOKENS = {"f32": 1e-4, "bf16": 0.2} | dict.fromkeys([*CODES, "int4"], 0.3)


def tolerance(case: Case) -> float:
    if case.op == "generation":
        return OF_TOKENS[case.precision]
    is_loss_in_bf16 = case.op == "train_step" and case.precision == "bf16"
    return OF_LOSSES_IN_BF16 if is_loss_in_bf16 else TOLERANCE[case.precision]


def main():
    options = arguments()
    models, cases = all_cases(options.precision, options.minilm, options.quick)
    cases = selected(cases, options.only)
    if options.list:
        print("\n".join(case.id for case in cases))
        return
    if not cases:
        sys.exit("no case is left; --list says which there are")
    names = options.peers or workers.NAMES
    # A run builds for minutes first, then computes a reference, and draws its plot after the first case.
    if unknown := [name for name in names if name not in workers.NAMES]:
        sys.exit(f"no peer is called {', '.join(unknown)}; known: {', '.join(workers.NAMES)}")
    if missing := [name for name in [*REFERENCE_NEEDS, *report.NEEDS] if find_spec(name) is None]:
        sys.exit(f"the reference and the report need {', '.join(missing)}: pip install {' '.join(missing)}")
    # With autotuning, inductor compiles and times every candidate for every product: its best result, but slow to
    # compile.
    compile_mode = options.compile or ("default" if options.quick else "max-autotune-no-cudagraphs")
    crew = workers.make(names, options.threads, options.patience, compile_mode)
    record = {
        "date": date.today().isoformat(),
        "machine": machine.describe(options.machine),
        "threads": options.threads,
        "rounds": options.rounds,
        "options": " ".join(sys.argv[1:]),
        "peers": {},
        "cases": [],
    }
    folder = tempfile.TemporaryDirectory() if options.work is None else None
    work = Path(folder.name) if folder else options.work
    work.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        for number, (case, prepared) in enumerate(prepare(models, cases, work), 1):
            entries = measure(case, prepared, crew, record["peers"], options)
            record["cases"] += entries
            minutes = (time.monotonic() - started) / 60
            for entry in entries:
                print(f"[{number}/{len(cases)}, {minutes:.0f} min] {report.line(entry)}", flush=True)
            save(record, options.out)  # saves the measurements so far
    finally:
        for worker in crew:
            worker.end()
        if folder:
            folder.cleanup()
    print(f"written: {save(record, options.out)}")
    wrong = [f"{entry['id']}: {name}" for entry in record["cases"] for name in entry["wrong"]]
    if wrong:
        sys.exit("these compute something else:\n" + "\n".join(wrong))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small subset of the shapes")
    parser.add_argument("--minilm", type=Path, help="directory of all-MiniLM-L6-v2, to be measured as well")
    parser.add_argument("--precision", nargs="+", choices=list(TOLERANCE | OF_TOKENS), default=["f32", "bf16", "int8"])
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="cases whose id holds one of these")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7, help="how often each peer has its turn")
    parser.add_argument("--turn", type=float, default=0.3, help="seconds of a turn")
    parser.add_argument("--compile", metavar="MODE", help="of torch.compile; with autotuning if not given, without for --quick")
    parser.add_argument("--patience", type=float, default=900, help="seconds a peer may take to answer")
    parser.add_argument("--work", type=Path, help="where checkpoints are kept; a temporary directory if not given")
    parser.add_argument("--out", type=Path, default=None, help="the record; benches/record/<date>-<machine>.json if not given")
    parser.add_argument("--machine", help="what to call the machine; its processor's name if not given")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    return parser.parse_args()


def prepare(models: dict[str, Model], cases: list[Case], work: Path):
    """Writes each case's checkpoint and input, and yields the case with the settings for workers and the check."""
    import checkpoints  # slow to import, and not needed for --list
    import training
    import whole

    reference = checkpoints.Reference()
    known = (None, None)  # all precisions of a shape share a reference; only one is kept
    for case in sorted(cases, key=lambda case: (list(models).index(case.model), case.op, case.batch, case.seq, case.variant)):
        model = models[case.model]
        directory = checkpoints.write_checkpoint(model, work / case.model)
        config = json.loads((directory / "config.json").read_text())
        path = work / "input"
        if case.is_whole:
            inputs = whole.write_input(case, config, path)
        else:
            d_model = config.get("hidden_size") or config["n_embd"]
            inputs = checkpoints.write_input(case, d_model, path)
        task = {"op": case.op, "precision": case.precision, "checkpoint": str(directory), "input": str(path)}
        if case.is_whole:
            task |= whole.task(case, directory, work)
        if case.op == "train_step":
            task["training"] = training.task(case, config, work)
        # Quantized files have their own weights.
        shape = case.id if case.precision in CODES else case.id.rsplit("/", 1)[0]
        if known[0] != shape:
            known = (shape, reference.output(case, model.family, directory, inputs, task))
        output = work / "output.safetensors"

        def deviations(known=known, inputs=inputs, case=case) -> list[tuple[float, float]]:
            return checkpoints.deviations(tolerance(case), known[1], inputs, output)

        yield case, {"task": task, "output": str(output), "deviations": deviations}


def measure(case: Case, prepared: dict, crew: list, peers: dict, options) -> list[dict]:
    """Loads the case in all workers, checks all results, then measures in turns. Returns the case's lines in the
    table."""
    failed, wrong, times, ready = {}, {}, {}, []
    if case.op == "train_step" or case.is_whole:
        for worker in crew:
            worker.end()  # memory from earlier cases would be part of its peak
    for worker in crew:
        try:
            loaded = worker.ask(do="load", **prepared["task"])
            Path(prepared["output"]).unlink(missing_ok=True)
            worker.ask(do="check", output=prepared["output"])
            deviations = prepared["deviations"]()
        except workers.Failure as failure:
            failed[worker.name] = str(failure)
            continue
        peer = peers.setdefault(worker.name, {"version": worker.version, "settings": loaded["settings"]})
        if loaded["settings"] not in peer["settings"]:
            peer["settings"] += f"; {loaded['settings']}"
        too_far = [error for error, allowed in deviations if error > allowed]
        if too_far:
            wrong[worker.name] = too_far[0]
            continue
        times[worker.name] = {"deviations": deviations, "ms": {}}
        ready.append(worker)
    # For a whole model a sample takes longer than a turn, or than a process, and the check was the warm-up.
    counts = dict.fromkeys(times, 1) if case.is_whole else {}
    for turn in range(1 if case.is_whole else 0, options.rounds + 1):
        # A random order in each round: no worker always runs after the same one.
        for i in range(len(ready)):
            worker = ready[(i + turn) % len(ready)]
            try:
                if turn == 0:
                    # Estimates the samples per turn from the minimum, since the first samples are not warm.
                    first = worker.ask(do="run", warm=1, count=3)["ms"]
                    counts[worker.name] = max(1, min(10_000, int(1e3 * options.turn / min(first))))
                    continue
                count = counts[worker.name]
                if case.variant == "cold":
                    answer = from_start(worker, prepared["task"])
                else:
                    warm = 0 if case.is_whole else min(5, 1 + count // 10)
                    answer = worker.ask(do="run", warm=warm, count=count)
                for variant, ms in lines(case, answer).items():
                    times[worker.name]["ms"].setdefault(variant, []).append(ms)
                times[worker.name]["peak_mb"] = answer.get("peak_mb")
            except workers.Failure as failure:
                failed[worker.name] = str(failure)
                counts[worker.name] = 0
        ready = [worker for worker in ready if worker.name not in failed]
    return [
        replace(case, variant=variant).as_dict() | {
            "times": {worker.name: summary(times[worker.name], variant) for worker in ready},
            "failed": failed, "wrong": wrong,
        }
        for variant in lines(case, {"ms": [], "first_ms": []})
    ]


def from_start(worker, task: dict) -> dict:
    """Returns the time from a process's start to its first result."""
    worker.end()
    start = time.perf_counter()
    worker.ask(do="load", **task)
    answer = worker.ask(do="run", warm=0, count=1)
    return answer | {"ms": [1e3 * (time.perf_counter() - start)]}


def lines(case: Case, answer: dict) -> dict[str, list[float]]:
    """Returns samples by variant: for a generation the time to the first token, and the time for each later token."""
    if case.op != "generation":
        return {case.variant: answer["ms"]}
    first = answer["first_ms"]
    behind = [(total - start) / (NEW_TOKENS - 1) for total, start in zip(answer["ms"], first)]
    return {"first": first, "next": behind}


def summary(times: dict, variant: str) -> dict:
    """Returns the median over all samples. The range of the turns' medians shows how quiet the machine was."""
    turns = [statistics.median(turn) for turn in times["ms"][variant]]
    samples = [ms for turn in times["ms"][variant] for ms in turn]
    return {
        "median_ms": statistics.median(samples),
        "min_ms": min(samples),
        "samples": len(samples),
        "turns_ms": [round(turn, 6) for turn in turns],
        "deviations": times["deviations"],
        "peak_mb": times.get("peak_mb"),
    }


def save(record: dict, out: Path | None) -> Path:
    """Writes the record as JSON, with a table and a plot next to it."""
    path = out or RECORD / f"{record['date']}-{record['machine']['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(report.markdown(record))
    report.plot(record, path.with_suffix(".png"))
    return path


if __name__ == "__main__":
    main()
