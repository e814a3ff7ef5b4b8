"""What every sweep begins with: this folder's neighbors can be imported, there is no network, PyTorch has one thread, and
transformers says nothing.

A script imports it first.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers

torch.set_num_threads(1)
transformers.logging.set_verbosity(50)
transformers.logging.disable_progress_bar()
warnings.simplefilter("ignore")


def options(description: str, out: str) -> argparse.ArgumentParser:
    """The options that every sweep has: the program, a pattern of keys, and a file of records."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--keys", default="*", help="a pattern of keys")
    parser.add_argument("--out", type=Path, help=out)
    return parser
