"""Writes what transformers' tokenizer classes make of every key, for the Rust test that compares with it.

    python weights/sweep/tokenizer_classes.py OUT
    CANDLE_BLOCKS_TOKENIZERS=OUT cargo test --release --workspace --test text tokens_and_texts
"""

import start  # noqa: F401 - first: it lets the others be found

import sys
from pathlib import Path

from fixtures.reference import tokenizer_classes

print(tokenizer_classes.write(Path(sys.argv[1]), full=True))
