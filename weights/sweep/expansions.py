"""Writes ColBERT's queries of every family in `weights/families` by sentence-transformers, for the Rust test that compares with them.

    python weights/sweep/expansions.py OUT
    CANDLE_BLOCKS_EXPANSIONS=OUT cargo test --release --workspace --test text expansion
"""

import start  # noqa: F401 - first: it lets the others be found

import sys
from pathlib import Path

from fixtures import expansions

ROOT = Path(__file__).resolve().parents[1]
# transformers finds no weights for the encoders of these models alone, and initializes them at random.
RANDOM = {"bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "mvp", "pegasus", "plbart"}
FAMILIES = sorted({path.parent.name for path in ROOT.glob("families/*/model.safetensors")} - RANDOM)
CASES = [case for family in FAMILIES for case in expansions.of_family(family)]
for name, why in expansions.write(ROOT, Path(sys.argv[1]), CASES).items():
    print(f"{name}: {why}")
