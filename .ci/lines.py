"""Prints the lines of each package, source and tests apart, and fails above the limits that ARCHITECTURE.md names.

    python3 .ci/lines.py

A module `tests` at the end of a source file counts as tests, as do benchmarks of the package and its examples.
"""

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST, MOST_OF = 51_540, {"crates/layers": 37_970}


def main():
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    lines = defaultdict(lambda: [0, 0])
    for path in map(Path, listed):
        parts = path.parts
        package = "/".join(parts[:2]) if parts[0] == "crates" else parts[0] if parts[0] in ("fuzz", "benches") else "."
        source, _, tests = (ROOT / path).read_text().partition("\n#[cfg(test)]\nmod tests")
        counts = [source.count("\n") + 1, tests.count("\n")]
        is_source = "src" in parts and "tests" not in parts
        lines[package][0] += counts[0] if is_source else 0
        lines[package][1] += counts[1] if is_source else sum(counts)
    for package, (source, tests) in sorted(lines.items()):
        print(f"{package:18} {source:7} source {tests:7} tests")
    print(f"{'all':18} {sum(s for s, _ in lines.values()):7} source {sum(t for _, t in lines.values()):7} tests")
    over = [package for package, (source, _) in lines.items() if source > MOST_OF.get(package, MOST)]
    sys.exit(f"too large: {', '.join(over)}" if over else 0)


main()
