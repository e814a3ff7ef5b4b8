"""Writes what transformers makes of vocabularies without `tokenizer.json` beside every key, for the Rust test that compares with it.

    python weights/sweep/vocabulary_files.py OUT
    CANDLE_BLOCKS_VOCABULARIES=OUT cargo test --release --workspace --test text of_its_class
"""

import start  # noqa: F401 - first: it lets the others be found

import sys
from pathlib import Path

from fixtures.reference import vocabulary_files

print(vocabulary_files.write(Path(sys.argv[1]), full=True))
