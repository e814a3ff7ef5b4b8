"""Converts the record of a run to Markdown."""

import statistics

PEERS = {"ours": "candle-blocks", "eager": "PyTorch", "compiled": "PyTorch compiled"}


def median(entry: dict, peer: str) -> float | None:
    times = entry.get(peer, {}).get("ms")
    return statistics.median(times) if times else None


def ratio(entry: dict, peer: str) -> float | None:
    """Returns the peer's time divided by ours: above 1 this crate is faster."""
    theirs, ours = median(entry, peer), median(entry, "ours")
    return theirs / ours if theirs and ours else None


def line(entry: dict) -> str:
    """Returns a case in one line, to show progress."""
    times = [f"{title} {number(median(entry, peer))} ms" for peer, title in PEERS.items() if peer in entry]
    return f"{entry['name']}: {', '.join(times)}"


def times_ours(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def tests_line(test: dict) -> str:
    """Returns a program's tests in one line, to show progress."""
    counts = ", ".join(f"{test[kind]} {kind}" for kind in ("passed", "failed", "hung"))
    return f"{test['program']}: {counts}, {test['not_begun']} not begun; {test['on_cpu']} of those passed are the CPU's; {test['seconds']:.0f} s"


def conformance_line(found: dict) -> str:
    unfinished = f", {found['unfinished']} shards unfinished" if found["unfinished"] else ""
    return f"conformance: {len(found['rows'])} rows, {len(found['wrong'])} wrong{unfinished}; {found['seconds']:.0f} s"


def judge_line(found: dict) -> str:
    return f"PyTorch on the device: {len(found['stacks'])} stacks, {len(found['left_out'])} left out; {found['seconds']:.0f} s"


def failures(record: dict) -> list[str]:
    """Returns this crate's failures on the device."""
    found = [f"{test['program']}: {name}" for test in record["tests"] for name in test["failures"]]
    found += [f"conformance: {name}: {text}" for name, text in record.get("conformance", {}).get("wrong", {}).items()]
    return found + [f"{entry['name']}: {entry['ours']['error']}" for entry in record["cases"] if "error" in entry.get("ours", {})]


def left_out(record: dict) -> list[str]:
    """Returns the distinct lines for parts that were left out."""
    found = list(record["left_out"])
    for test in record["tests"]:
        found += [f"{text} (tests: {test['program']})" for text in test["left_out"][:4]]
        if more := test["left_out"][4:]:
            found.append(f"{len(more)} more that {test['log']} has after LEFT OUT (tests: {test['program']})")
    reasons = {}
    for entry in record["cases"]:
        for peer in ("eager", "compiled"):
            if "error" in entry.get(peer, {}):
                reasons.setdefault(f"{PEERS[peer]}: {entry[peer]['error']}", []).append(entry["name"])
    found += [f"{reason} ({', '.join(names)})" for reason, names in reasons.items()]
    return found + [f"PyTorch on the device: {text}" for text in record.get("judge", {}).get("left_out", [])]


def summary(record: dict) -> list[str]:
    lines = []
    if record["device"] == "cpu":
        lines.append("**No GPU.** The CPU computed what CUDA would be asked for, and its training is compared with itself.")
    if record["smoke"]:
        lines.append("**Small sizes** (`--smoke`): the times mean nothing.")
    if record["tests"]:
        sums = {kind: sum(test[kind] for test in record["tests"]) for kind in ("passed", "failed", "hung", "on_cpu")}
        lines.append("**Tests:** {passed} passed ({on_cpu} of them are the CPU's), {failed} failed, {hung} hung.".format(**sums))
    if found := record.get("conformance"):
        lines.append(f"**Conformance:** {len(found['rows'])} rows, {len(found['wrong'])} wrong.")
    measured = [entry for entry in record["cases"] if median(entry, "ours")]
    if record["cases"]:
        lines.append(f"**Results:** {len(measured)} of {len(record['cases'])} cases agree with the CPU in f32.")
    spans = []
    for peer in ("eager", "compiled"):
        if ratios := [found for entry in record["cases"] if (found := ratio(entry, peer))]:
            spans.append(f"{peer} {min(ratios):.2f} to {max(ratios):.2f}")
    if spans and not record["smoke"]:
        lines.append(f"**Speed:** PyTorch's time over ours: {', '.join(spans)}; above 1 this crate is faster.")
    return lines


def table(heads: list[str], rows: list[list[str]]) -> str:
    cells = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells)


def markdown(record: dict) -> str:
    device = record["machine"].get("device", "unknown")
    parts = [f"# candle-blocks on {device} ({record['device']})"]
    parts.append(f"`benches/gpu/run.py {record['options']}`, {record['date']}.")
    parts.append("\n".join(f"- {text}" for text in summary(record)))
    if wrong := failures(record):
        parts += ["## Failed", "\n".join(f"- {text.splitlines()[0]}" for text in wrong)]
        shown = {name: text for test in record["tests"] for name, text in test["failures"].items() if text}
        parts += [f"{name}:\n\n```text\n{text}\n```" for name, text in shown.items()]
    parts += ["## Machine", "\n".join(f"- {name}: {fact}" for name, fact in record["machine"].items())]
    if record["tests"]:
        heads = ["tests", "passed", "of them the CPU's", "failed", "hung", "not begun", "in one process", "passed alone only", "s", "log"]
        kinds = ("program", "passed", "on_cpu", "failed", "hung", "not_begun")
        rows = [[*(t[kind] for kind in kinds), t["together"], ", ".join(t["again"]) or "–", f"{t['seconds']:.0f}", f"`{t['log']}`"] for t in record["tests"]]
        parts += ["## Tests", table(heads, rows)]
    if found := record.get("conformance"):
        parts += ["## Conformance", *conformance(found)]
    if found := record.get("judge"):
        parts += ["## PyTorch on the same device, by the same fixtures", *judge(found)]
    if record["cases"]:
        parts += ["## Times and memory", *times(record["cases"])]
    if "sanitizer" in record:
        parts += ["## Reads and writes out of bounds", record["sanitizer"]]
    parts += ["## Left out", "\n".join(f"- {text}" for text in left_out(record)) or "Nothing."]
    return "\n\n".join(parts) + "\n"


def conformance(found: dict) -> list[str]:
    """Returns the table of verdicts by type, and of the rows that use the most of their bounds."""
    heads, rows = ["type", "rows", "verdicts", "largest share, stages", "gradients"], []
    share = lambda row, column: float(row[column]) if row[column] != "-" else 0.0
    for dtype in sorted({row[2] for row in found["rows"]}):
        of = [row for row in found["rows"] if row[2] == dtype]
        verdicts = ", ".join(f"{sum(row[-1] == verdict for row in of)} {verdict}" for verdict in sorted({row[-1] for row in of}))
        largest = [f"{max(share(row, column) for row in of):.2f}" for column in (5, 8)]
        rows.append([dtype, len(of), verdicts, *largest])
    return ["The bounds come from PyTorch's errors on a CPU, as in weights/conformance.md.", table(heads, rows)]


def judge(found: dict) -> list[str]:
    """Returns how many stacks PyTorch itself computes outside the bounds, and the largest of them."""
    rows = []
    for kind in ("stages", "gradients"):
        of = sorted(found["stacks"], key=lambda stack: -stack[kind])
        beyond = sum(stack[kind] > 1 for stack in of)
        named = "; ".join(f"{stack['name']} {stack[kind]:.2f}" for stack in of[:8])
        rows.append([kind, len(of), beyond, named])
    return [table(["f32", "stacks", "beyond the bound", "largest shares"], rows)]


def times(entries: list[dict]) -> list[str]:
    rows, issued = [], []
    for entry in entries:
        ours = entry.get("ours", {})
        found = [number(median(entry, peer)) for peer in PEERS] + [times_ours(ratio(entry, peer)) for peer in ("eager", "compiled")]
        rows.append([entry["name"], *found, f"{ours['deviation']:.0e}" if "deviation" in ours else "failed" if "error" in ours else "–"])
        moved = [f"{n} ({size} B)" if n else "0" for n, size in (ours.get(way, (0, 0)) for way in ("uploads", "downloads"))]
        memory = ["{} / {}".format(*(number(entry.get(peer, {}).get(kind)) for kind in ("sampled_mb", "held_mb"))) for peer in PEERS]
        issued.append([entry["name"], ours.get("operations", "–"), *(moved if "ms" in ours else "––"), *memory])
    return [
        "Medians in ms, the device idle before and after each call; the distance is that of our result from the CPU's in f32.",
        table(["case", *PEERS.values(), "PyTorch / ours", "compiled / ours", "distance"], rows),
        "What one call of ours asks the device for, and peak memory in MB: nvidia-smi's sampled every 20 ms, above what was used before, "
        "with the process's context / what the library itself says (PyTorch's `max_memory_allocated`, what Metal holds).",
        table(["case", "operations", "uploads", "downloads", *PEERS.values()], issued),
    ]

