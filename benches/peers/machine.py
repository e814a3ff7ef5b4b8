"""The machine on which the benchmarks run."""

import os
import platform
import re
from pathlib import Path


def describe(name: str | None) -> dict:
    processor = processor_name()
    return {
        "name": name or short(processor),
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def short(processor: str) -> str:
    """Returns a short name for file names."""
    words = re.sub(r"\(.*?\)|processor|cpu", " ", processor, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "unknown"
