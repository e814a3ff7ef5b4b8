"""Converts a record to a table and a plot. For a single panel: `report.py RECORD.json PANEL OUT.svg`."""

import json
import math
import sys
from pathlib import Path

OURS = "candle-blocks"
# The modules that the plot needs, beside Python's own.
NEEDS = ("matplotlib",)
TITLES = {
    "feed_forward": "Feed-forward sublayer, norm(x + down(gelu(up(x)))), by rows",
    "encoder": "Encoder, batch x sequence",
    "prefill": "Decoder, prefill",
    "step": "Decoder, one token behind a cache",
    "train_step": "A step of training, forward, backward and AdamW, batch x sequence",
    "texts": "Texts to vectors, texts x most tokens (cold: with the start of the process)",
    "generation": "Generation, prompts x tokens (first: until the first new token; next: for each behind it)",
}
# Each peer has the same color in every plot.
COLORS = {
    "candle-blocks-plain": "#7f7f7f",
    "candle": "#d62728",
    "pytorch": "#ff7f0e",
    "pytorch-compiled": "#bcbd22",
    "onnxruntime": "#1f77b4",
    "openvino": "#9467bd",
    "llama.cpp": "#2ca02c",
}


def median(entry: dict, name: str) -> float | None:
    times = entry["times"].get(name)
    return times and times["median_ms"]


def best_peer(entry: dict) -> tuple[str, float] | None:
    """Returns the fastest peer outside this crate."""
    peers = [(name, times["median_ms"]) for name, times in entry["times"].items() if not name.startswith(OURS)]
    return min(peers, key=lambda peer: peer[1], default=None)


def ours(entry: dict) -> tuple[str, float] | None:
    """Returns this crate's packed form, or else its other form."""
    found = [(name, median(entry, name)) for name in (OURS, f"{OURS}-plain")]
    return next(((name, ms) for name, ms in found if ms), None)


def lead(entry: dict) -> float | None:
    """Returns the best peer's time divided by ours: above 1 this crate is faster."""
    own, best = ours(entry), best_peer(entry)
    return best[1] / own[1] if own and best else None


def geometric_mean(numbers: list[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def line(entry: dict) -> str:
    """Returns a case in one line, to show progress."""
    times = ", ".join(f"{name} {times['median_ms']:.3f}" for name, times in entry["times"].items())
    wrong = "".join(f", {name} WRONG by {error:.1e}" for name, error in entry["wrong"].items())
    factor = lead(entry)
    return f"{entry['id']}: {times}{wrong}" + (f" -> {factor:.2f}" if factor else "")


def groups(record: dict) -> dict[tuple[str, str, str], list[dict]]:
    """Groups cases by operation, model and precision, in the record's order."""
    found = {}
    for entry in record["cases"]:
        found.setdefault((entry["op"], entry["model"], entry["precision"]), []).append(entry)
    return found


def markdown(record: dict) -> str:
    machine = record["machine"]
    lines = [
        f"# {machine['processor']}, {record['date']}",
        "",
        f"{record['threads']} threads of {machine['cores']} cores, {machine['system']}; medians in ms of {record['rounds']} turns, "
        f"interleaved; load before the run {machine['load_before']}. Options: `{record['options']}`.",
        "",
        "The last column is the best peer's time over ours: above 1 this crate is faster. Every result was first compared with",
        "transformers in float64; tokens with its logits in f32.",
        "",
    ]
    lines += [f"- {name} {peer['version']}: {peer['settings']}" for name, peer in record["peers"].items()]
    for (op, model, precision), entries in groups(record).items():
        names = [name for name in record["peers"] if any(name in entry["times"] for entry in entries)]
        if not names:
            continue
        lines += ["", f"## {TITLES[op]}: {model}, {precision}", ""]
        lines += [f"| | {' | '.join(names)} | best peer / ours |", "|---" * (len(names) + 2) + "|"]
        for entry in entries:
            best = best_peer(entry)
            cells = []
            for name in names:
                ms = median(entry, name)
                text = "-" if ms is None else f"{ms:.4g}"
                cells.append(f"**{text}**" if best and name == best[0] else text)
            factor = lead(entry)
            lines.append(f"| {entry['shape']} | {' | '.join(cells)} | {f'{factor:.2f}' if factor else '-'} |")
            for label, numbers in details(entry, names).items():
                cells = [number or "-" for number in numbers]
                lines.append(f"| {label} | {' | '.join(cells)} | |")
        leads = [factor for factor in map(lead, entries) if factor]
        if leads and op not in ("texts", "generation"):  # their lines have different units
            lines += ["", f"Geometric mean {geometric_mean(leads):.2f}, least {min(leads):.2f}."]
    failed = failures(record)
    if failed:
        lines += ["", "## Not measured", "", *failed]
    return "\n".join(lines) + "\n"


def details(entry: dict, names: list[str]) -> dict[str, list[str | None]]:
    """Returns the lines below a case: the rate per second, and memory unless it is mostly layer weights."""
    found = {}
    many = {"texts": "texts", "generation": "tokens"}.get(entry["op"])
    if many and entry.get("variant") not in ("cold", "first"):
        rates = [ms and 1e3 * entry["batch"] / ms for ms in (median(entry, name) for name in names)]
        found[f"{many} per second"] = [rate and f"{rate:.4g}" for rate in rates]
    if entry["op"] in ("train_step", "texts", "generation") and entry.get("variant") != "first":
        peaks = [entry["times"].get(name, {}).get("peak_mb") for name in names]
        found["peak memory"] = [peak and f"{peak:.0f} MB" for peak in peaks]
    return found


def failures(record: dict) -> list[str]:
    """Returns a line for each peer and reason, with the number of cases."""
    reasons = {}
    for entry in record["cases"]:
        for name, reason in entry["failed"].items():
            reasons.setdefault((name, reason), []).append(entry["id"])
        for name, error in entry["wrong"].items():
            reasons.setdefault((name, f"wrong result, off by {error:.1e}"), []).append(entry["id"])
    return [f"- {name}: {reason} ({ids[0]}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''})"
            for (name, reason), ids in reasons.items()]


def plot(record: dict, path: Path, only: str | None = None):
    """Draws a panel for each table with peers to compare, or one of them: every peer's time divided by ours."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "0"})  # small and reproducible files
    from matplotlib import pyplot
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    panels = [(key, entries) for key, entries in plotted(record) if any(map(lead, entries)) and only in (None, key)]
    if not panels:
        return
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    head, height = 1.0, 3.6 * rows + 1.0  # inches; the head is for the title and the legend
    figure, axes = pyplot.subplots(rows, columns, figsize=(max(8.0, 5.2 * columns), height), squeeze=False)
    for axis, (title, entries) in zip(axes.flat, panels):
        labels = [entry["label"] for entry in entries]
        for name, color in COLORS.items():
            points = [(i, median(entry, name) / ours(entry)[1]) for i, entry in enumerate(entries)
                      if median(entry, name) and ours(entry) and ours(entry)[0] != name]
            if points:
                axis.plot(*zip(*points), marker="o", markersize=4, linewidth=1.2, color=color, label=name)
        axis.axhline(1, color="black", linewidth=1.5)
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        low, high = min(low, 0.7), max(high, 2.2)
        axis.set_ylim(low, high)
        axis.axhspan(low, 1, color="#d62728", alpha=0.06)
        fine = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5]
        coarse = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]
        shown = [tick for tick in (fine if high / low < 10 else coarse) if low <= tick <= high]
        axis.yaxis.set_major_locator(FixedLocator(shown))
        axis.set_yticklabels([f"{tick:g}x" for tick in shown])
        axis.yaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_minor_formatter(NullFormatter())
        slanted = {"rotation": 35, "ha": "right"} if max(map(len, labels)) > 5 else {}
        axis.set_xticks(range(len(labels)), labels, fontsize=8, **slanted)
        axis.set_title(title, fontsize=10)
        axis.grid(axis="y", linewidth=0.4, alpha=0.6)
        axis.set_xlim(-0.5, len(labels) - 0.5)
    for axis in list(axes.flat)[len(panels):]:
        axis.set_visible(False)
    handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
    machine = record["machine"]
    title = (
        "Time of each library over that of candle-blocks: above 1x candle-blocks is faster\n"
        f"{machine['processor']}, {record['threads']} threads, {record['date']}"
    )
    figure.suptitle(title, fontsize=11, y=1 - 0.1 / height, va="top").set_in_layout(False)
    if handles:
        figure.legend(
            handles.values(), handles.keys(), loc="upper center", ncols=len(handles), fontsize=9, frameon=False,
            bbox_to_anchor=(0.5, 1 - 0.55 / height),
        )
    figure.tight_layout(rect=(0, 0, 1, 1 - (head - 0.1) / height))
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def plotted(record: dict) -> list[tuple[str, list[dict]]]:
    """Returns the entries in each panel. The decoders share one."""
    panels = {}
    for entry in record["cases"]:
        if entry["op"] in ("prefill", "step"):
            key, label = ("decoders", entry["precision"]), f"{entry['model']} {entry['op']}"
        else:
            key, label = (entry["op"], entry["model"], entry["precision"]), entry["shape"]
        panels.setdefault(key, []).append(entry | {"label": label})
    names = {"feed_forward": "feed-forward", "decoders": "decoders"}
    return [(" ".join([names.get(key[0], key[0]), *key[1:]]), entries) for key, entries in panels.items()]


if __name__ == "__main__":
    source, panel, out = sys.argv[1:]
    plot(json.loads(Path(source).read_text()), Path(out), panel)
