"""Pools the vectors of tokens as GGUF files say, and compares the program's vectors with llama.cpp's.

    cd weights; pip install llama-cpp-python
    python -m sweep.gguf_pooling PROGRAM [--files NAME ..]      # a minute; exits with 1 if a vector differs

Each committed file is written anew with F32 tensors, a vocabulary of letters, and each value of `<architecture>.pooling_type`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from fixtures import gguf_judge

from . import gguf_keys

TEXTS = ["abc", "dfeaab", "g", "hagfedcbaabcd"]


def ours(program: str, path: Path, texts: Path) -> np.ndarray | str:
    """Vectors, or what the program says."""
    out = path.with_suffix(".jsonl")
    done = subprocess.run([program, "embed", "--model", path, "--output", out, texts], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return np.array([json.loads(line)["embedding"] for line in out.read_text().splitlines()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--files", nargs="+")
    arguments = parser.parse_args()
    n_same, wrong = 0, []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        texts = folder / "texts.txt"
        texts.write_text("".join(text + "\n" for text in TEXTS))
        ids = [[3 + gguf_keys.LETTERS.index(letter) for letter in text] for text in TEXTS]
        for name, source in gguf_keys.sources(folder, arguments.files):
            for pooling, value in {**gguf_judge.POOLINGS, "unsaid": None}.items():
                path = folder / "changed.gguf"
                gguf_keys.rewritten(source, path, {} if value is None else {"pooling_type": value})
                judge, found = gguf_judge.vectors(path, ids), ours(arguments.program, path, texts)
                is_vector = not isinstance(judge, str) and judge[0].ndim == 1 and pooling != "rank"
                if isinstance(found, str):
                    print(f"{name}, {pooling}: refused: {found}")
                    if is_vector:
                        wrong.append(f"{name}, {pooling}: refused")
                    continue
                off = float(np.abs(np.stack(judge) - found).max()) if is_vector else float("inf")
                print(f"{name}, {pooling}: off by {off:.2g}")
                n_same += 1
                # llama.cpp reads GELU from a table of f16.
                if off > 5e-3:
                    wrong.append(f"{name}, {pooling}: off by {off:.2g}")
    print(f"{n_same} files with llama.cpp's vectors, {len(wrong)} wrong", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
