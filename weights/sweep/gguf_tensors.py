"""Removes and adds tensors of small GGUF files, one kind at a time, and compares the program's logits with llama.cpp's.

    cd weights; pip install llama-cpp-python
    python -m sweep.gguf_tensors PROGRAM --cases FOLDER [--files NAME ..] [--record FILE]  # exits with 1 if anything differs silently
    python -m sweep.gguf_tensors --tabulate RECORD ..

FOLDER has the files of every architecture, which `gguf_architectures.py --keep FOLDER` made. A kind of tensor is its name without the
number of its block. Each kind is removed from all blocks, and from one. gguf-py has the names of all kinds of tensors; which of them
llama.cpp reads beside those in a file, and of what shape, it says itself where all have a wrong shape. Each that it reads is added with
random values. Queries, keys and values are joined and parted, vectors get a second dimension, and dimensions of one are left out.
Where llama.cpp opens the file, the program's numbers must be llama.cpp's, or its refusal must name the tensor.
"""

import argparse
import collections
import re
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

from fixtures import gguf_judge
from sweep.gguf_keys import Ours, Sweep, Stored, is_wrong, sweep_files

SEED = 7
# Wrong for every tensor of a small model.
NOBODYS = 13
# Kinds that are added at once.
TOGETHER = (r"attn_(q|k|v)\.bias$", r"attn_(q|k|v|qkv|output)\.bias$", r"ffn_(gate|up|down)\.bias$", r"attn_[qk]_norm\.", r"\.bias$")
SUFFIXES = ("weight", "bias", "scale")


class File:
    """The tensors of a file, beside its keys as they are stored."""

    def __init__(self, path: Path):
        self.keys = Stored(path)
        reader = gguf.GGUFReader(path)
        self.arch = reader.fields["general.architecture"].contents()
        self.n_blocks = int(np.max(reader.fields[f"{self.arch}.block_count"].contents()))
        self.tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}

    def write(self, path: Path, tensors: dict[str, np.ndarray]) -> None:
        writer = gguf.GGUFWriter(path, self.arch)
        for name, tensor in tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(tensor))
        for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
            step()
        # With the keys of the file.
        made = Stored(path)
        made.keys = self.keys.keys
        made.write(path, {})


def kind_of(name: str) -> str:
    return re.sub(r"(?<=blk\.)\d+(?=\.)", "{i}", name)


def names_of_all(file: File) -> list[str]:
    """Tensors that the file has not, under every name of gguf-py and for every block."""
    found = []
    for pattern in dict.fromkeys(gguf.TENSOR_NAMES.values()):
        for block in range(file.n_blocks) if "{bid}" in pattern else [0]:
            found += [f"{pattern.format(bid=block, xid=0)}.{suffix}" for suffix in SUFFIXES]
    return [name for name in dict.fromkeys(found) if name not in file.tensors and not name.startswith(("v.", "mm.", "a.", "resampler"))]


def others_read(file: File, path: Path, worker) -> dict[str, list[int]]:
    """The tensors that llama.cpp reads beside those of the file, with the shapes that it expects."""
    found, left = {}, names_of_all(file)
    # One tensor for queries, keys and values hides the three.
    left = [name for name in left if "attn_qkv" not in name or not any("attn_q.weight" in own for own in file.tensors)]
    # Of all blocks those that it reads in the first two and in the last.
    named = {str(block) for block in (0, 1, file.n_blocks - 1)}
    left = [name for name in left if not name.startswith("blk.") and not name[3:].startswith(".blk.") or name.split("blk.")[1].split(".")[0] in named]
    tried = dict.fromkeys(left, np.zeros(NOBODYS, np.float32))
    while tried:
        file.write(path, {**file.tensors, **tried, **{name: np.zeros(shape[::-1], np.float32) for name, shape in found.items()}})
        said = worker.ask(gguf_judge.refusal, path)
        at = re.search(r"tensor '(\S+)' has wrong shape; expected +([\d, ]+), got", said or "")
        if not at or at[1] not in tried:
            break
        shape = [int(size) for size in at[2].split(",")]
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        tried.pop(at[1])
        if all(shape):  # an empty one is of something that this model lacks
            found[at[1]] = shape
    return found


def for_all_blocks(file: File, found: dict[str, list[int]]) -> dict[str, dict[str, list[int]]]:
    """The tensors of a kind in all blocks, which have the shape of the last, and in the first two their own."""
    kinds = collections.defaultdict(dict)
    for name, shape in found.items():
        kinds[kind_of(name)][name] = shape
    for kind, own in kinds.items():
        last = kind.replace("{i}", str(file.n_blocks - 1))
        if last in own:
            own |= {name: own[last] for block in range(2, file.n_blocks - 1) if (name := kind.replace("{i}", str(block))) not in file.tensors}
    return kinds


def values(name: str, shape: list[int], rng) -> np.ndarray:
    if name.endswith(("norm.weight", "norm_2.weight", ".scale", "rope_freqs.weight")) or "factors" in name:
        return (1.0 + 0.3 * rng.random(shape[::-1])).astype(np.float32)
    return (rng.standard_normal(shape[::-1]) * (0.3 if len(shape) < 2 else shape[0] ** -0.5)).astype(np.float32)


def joined(tensors: dict, new: str, *parts: str, axis: int = 0) -> dict | None:
    """The tensors with some joined in each block where all are."""
    made = dict(tensors)
    for name in tensors:
        if f".{parts[0]}." in name:
            names = [name.replace(f".{parts[0]}.", f".{part}.") for part in parts]
            if all(one in tensors for one in names):
                made[name.replace(f".{parts[0]}.", f".{new}.")] = np.concatenate([made.pop(one) for one in names], axis)
    return made if made.keys() != tensors.keys() else None


def parted(tensors: dict, key_width: int, of: str = "weight|bias") -> dict | None:
    """The tensors with the queries, keys and values apart."""
    made = dict(tensors)
    for name in tensors:
        if re.search(rf"\.attn_qkv\.({of})$", name):
            whole = made.pop(name)
            sizes = [len(whole) - 2 * key_width, key_width, key_width]
            for part, values in zip("qkv", np.split(whole, np.cumsum(sizes)[:-1])):
                made[name.replace("attn_qkv", f"attn_{part}")] = values
    return made if made.keys() != tensors.keys() else None


class Tensors(Sweep):
    """The verdicts on one file."""

    READ = "tensors read by llama.cpp beside the file's"

    def __init__(self, program: str, name: str, source: Path, folder: Path, is_encoder: bool, worker):
        super().__init__(program, name, source, folder, is_encoder, worker)
        self.file = File(folder / "begin.gguf")

    def is_judged(self) -> bool:
        return bool(self.tolerance)

    def try_tensors(self, change: str, tensors: dict | None) -> None:
        if tensors is None:
            return
        self.file.write(self.path, tensors)
        ours = Ours(self.program, self.path, self.prompts, self.is_encoder)
        verdict = self.of_tensors(change, self.asked(self.divisor_of(tensors)), ours)
        self.verdicts.append(({change: ""}, verdict))
        if is_wrong(verdict) or verdict.startswith("refused, but") or "--all" in sys.argv:
            print(f"{self.name}: {change}: {verdict}", flush=True)

    def of_tensors(self, change: str, judge, ours: Ours) -> str:
        if isinstance(judge, str):
            return "llama.cpp refuses; " + ("refused" if ours.values is None else "read")
        if not np.isfinite(judge).all():
            return "llama.cpp gives no numbers; " + ("refused" if ours.values is None else "read")
        is_changed = not self.same(judge, self.judge)
        if ours.values is None:
            if "tensor" not in ours.said:
                return f"REFUSED WITHOUT ITS NAME: {ours.said.splitlines()[-1]}"
            return f"refused, but llama.cpp {'reads it' if is_changed else 'is not changed'}: {ours.said.splitlines()[-1]}"
        if self.same(ours.values, judge):
            return "read" if is_changed else "changes nothing"
        # llama.cpp loads such a scale, and leaves it out of some products; a file of NVFP4 means that it multiplies.
        if change.endswith(".scale") and not is_changed:
            return "multiplied, which llama.cpp leaves out"
        if "left out" in ours.said:
            return "left out, as a note says"
        off = float(np.abs(ours.values - judge).max()) if ours.values.shape == judge.shape else float("inf")
        return f"DIFFERS by {off:.2g}: said {ours.said!r}"

    def run(self, names: list[str]) -> None:
        own, rng = self.file.tensors, np.random.default_rng(SEED)
        kinds = collections.defaultdict(list)
        for name in own:
            kinds[kind_of(name)].append(name)
        for kind, of in kinds.items():
            self.try_tensors(f"without {kind}", {name: tensor for name, tensor in own.items() if name not in of})
            if len(of) > 1:
                self.try_tensors(f"without {of[-1]}", {name: tensor for name, tensor in own.items() if name != of[-1]})
        # Biases and weights of norms together.
        for ends in ("_norm.weight", ".bias", "_q.bias", "_qkv.bias"):
            left = {name: tensor for name, tensor in own.items() if not name.endswith(ends)}
            self.try_tensors(f"without *{ends}", left if len(left) < len(own) else None)
        found = others_read(self.file, self.path, self.worker)
        self.n_read = len(found)
        added = for_all_blocks(self.file, found)
        for kind, of in added.items():
            self.try_tensors(f"with {kind}", {**own, **{name: values(name, shape, rng) for name, shape in of.items()}})
        for together in TOGETHER:
            kinds = [kind for kind in added if re.search(together, kind)]
            if len(kinds) > 1:
                self.try_tensors(f"with {' '.join(kinds)}", {**own, **{name: values(name, shape, rng) for kind in kinds for name, shape in added[kind].items()}})
        self.try_tensors("joined attn_qkv", joined(own, "attn_qkv", "attn_q", "attn_k", "attn_v"))
        self.try_tensors("joined ffn_gate_up_exps", joined(own, "ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", axis=1))
        width = self.key_width()
        self.try_tensors("parted attn_qkv", parted(own, width))
        self.try_tensors("parted attn_qkv.bias", parted(own, width, "bias"))
        self.try_tensors("two-dimensional * ", {name: tensor[None] if tensor.ndim == 1 else tensor for name, tensor in own.items()})
        self.try_tensors("squeezed * ", {name: tensor.reshape(tuple(size for size in tensor.shape if size != 1) or (1,)) for name, tensor in own.items()})

    def key_width(self) -> int:
        of = lambda key, other: int(np.max(self.reader.fields[f"{self.arch}.{key}"].contents())) if f"{self.arch}.{key}" in self.reader.fields else other
        heads = of("attention.head_count", 1)
        return of("attention.head_count_kv", heads) * of("attention.key_length", of("embedding_length", 0) // heads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--all", action="store_true")
    sweep_files(Tensors, parser, [])


if __name__ == "__main__":
    main()
