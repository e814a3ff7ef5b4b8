"""Changes every key of small GGUF files, one at a time, and compares the program's logits with llama.cpp's.

    cd weights; pip install llama-cpp-python
    python -m sweep.gguf_keys PROGRAM [--files NAME ..] [--table FILE]  # some 20 minutes; exits with 1 if anything differs silently

Each committed file is written anew, with F32 tensors, and with other values of a key that llama.cpp knows: its library holds the
names of these. Where llama.cpp's logits (of an encoder: its hidden states) change, the program's must become the same, or the
program must name the key in a refusal or a note. Where they do not change, the program's must not change either. `FILES` says
what is written otherwise than in the committed file, for llama.cpp opens no other.
"""

import argparse
import collections
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import safetensors.numpy

from fixtures import gguf_judge

ROOT = Path(__file__).parent.parent
# Heads as wide as llama.cpp's class has them.
FILES = {"qwen2moe": {"head_dim": 8}}
ROWS, SEQ = 2, 14
# The words after the first three.
LETTERS = [chr(first + i) for first in (97, 65, 0x391, 0x430) for i in range(17)]

# A value of every type tells whether an architecture reads a key: of another type, llama.cpp refuses it.
PROBES = ["nobodys", 3, [3, 3, 3, 3, 3, 3]]
# Values that may change nothing where others are refused.
NEUTRAL = [0, 1, 0.0, True, False]
VALUES = [0, 1, 2, 5, 0.0, 0.3, 3.0, True, False, "none", "linear", "yarn", "longrope", "gelu", "relu", "same", "unequal", "flags"]
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 4}
# Several keys at once, without the architecture.
TOGETHER = [
    YARN, YARN | {"rope.scaling.attn_factor": 3.0}, YARN | {"rope.scaling.yarn_ext_factor": 0.25}, YARN | {"rope.scaling.yarn_log_multiplier": 0.7},
    YARN | {"rope.scaling.yarn_beta_fast": 2.0}, YARN | {"rope.scaling.yarn_beta_slow": 0.1}, YARN | {"rope.scaling.yarn_attn_factor": 3.0},
    YARN | {"rope.scaling.alpha": 50.0}, YARN | {"rope.scaling.finetuned": True},
    {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 3.0}, {"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0},
    {"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, {"rope.freq_base": 20.0, "rope.freq_base_swa": 20.0},
    {"attention.key_length": 4, "attention.value_length": 4}, {"attention.sliding_window_pattern": 2, "attention.sliding_window": 2},
    {"attention.sliding_window_pattern": 1, "attention.sliding_window": 2}, {"attention.sliding_window_pattern": "flags", "attention.sliding_window": 3},
    {"attention.causal": False, "attention.sliding_window": 3}, {"expert_weights_norm": True, "expert_weights_scale": 2.0},
    {"expert_gating_func": 2, "expert_weights_norm": True}, {"expert_group_count": 2, "expert_group_used_count": 1},
    {"expert_shared_count": 1, "leading_dense_block_count": 1}, {"attention.max_alibi_bias": 8.0, "attention.causal": True},
]
# Keys that transformers reads of the model's own configuration, and llama.cpp does not for these architectures.
AS_TRANSFORMERS = {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor", "attention.sliding_window"}


def keys() -> list[str]:
    """Names of keys in llama.cpp's library, without the architecture."""
    library = next((Path(llama_cpp.__file__).parent / "lib").glob("libllama.so")).read_bytes()
    return sorted({key.decode() for key in re.findall(rb"(?<=\0)%s\.([a-z0-9_.]*[a-z0-9_])(?=\0)", library)})


def value_of(reader, key: str, value):
    """A value that depends on the number of blocks: `same` for each, `unequal`, or a flag for each."""
    arch = reader.fields["general.architecture"].contents()
    n = reader.fields[f"{arch}.block_count"].contents()
    if value == "flags":
        return [i % 2 == 0 for i in range(n)]
    if value in ("same", "unequal"):
        found = reader.fields.get(f"{arch}.{key}") or reader.fields[f"{arch}.attention.head_count"]
        found = found.contents()
        return None if isinstance(found, (list, str)) else [found] * (n - 1) + [found * 2 if value == "unequal" else found]
    return value


def rewritten(source: Path, path: Path, change: dict) -> None:
    """A copy with other keys, words for the judge, and tensors of F32."""
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    change = {key: value_of(reader, key, value) for key, value in change.items()}
    writer = gguf.GGUFWriter(path, arch)
    for key, field in reader.fields.items():
        if key.startswith(("GGUF.", "tokenizer.")) or key == "general.architecture" or key.removeprefix(f"{arch}.") in change:
            continue
        add(writer, key, field.contents())
    for key, value in change.items():
        add(writer, f"{arch}.{key}", value)
    n = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").shape[1]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<s>", "<pad>", "</s>", *LETTERS[: n - 3]])
    writer.add_token_types([3, 3, 3] + [1] * (n - 3))
    writer.add_token_merges(["0 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    for tensor in reader.tensors:
        # Beside quantized values llama.cpp rounds what they are multiplied by.
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(numbers, np.float32))
        if tensor.name == "token_types.weight":
            writer.add_uint32("tokenizer.ggml.token_type_count", int(tensor.shape[1]))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def add(writer: gguf.GGUFWriter, key: str, value) -> None:
    kind = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    kind[type(value)](key, value)


def judged(path: Path, ids: np.ndarray, is_encoder: bool) -> np.ndarray | str:
    found = gguf_judge.vectors(path, ids.tolist(), 0) if is_encoder else gguf_judge.logits(path, ids.tolist())
    return found if isinstance(found, str) else np.stack(found)


class Ours:
    """Logits or hidden states of the program, and what it says; or its refusal."""

    def __init__(self, program: str, path: Path, prompts: Path):
        out = path.with_suffix(".safetensors")
        done = subprocess.run([program, "run", "--model", path, "--input", prompts, "--output", out], capture_output=True, text=True)
        self.said = done.stderr.strip()
        self.values = None
        if done.returncode == 0:
            found = safetensors.numpy.load_file(out)
            self.values = found.get("logits", found.get("last_hidden_state", found.get("output")))
            out.unlink()


def is_wrong(verdict: str) -> bool:
    return verdict[:7] in ("DIFFERS", "REFUSED")


class Sweep:
    """The verdicts on one file."""

    def __init__(self, program: str, source: Path, folder: Path):
        self.program, self.source, self.path = program, source, folder / "changed.gguf"
        reader = gguf.GGUFReader(source)
        self.reader = reader
        self.is_encoder = reader.fields["general.architecture"].contents() == "bert"
        n = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").shape[1]
        self.ids = np.random.default_rng(1).integers(3, n, (ROWS, SEQ))
        self.prompts = folder / "prompts.safetensors"
        safetensors.numpy.save_file({"input_ids": self.ids}, self.prompts)
        self.judge, self.ours = self.found({})
        self.tolerance, self.verdicts, self.seen = 0.0, [], {}
        if not isinstance(self.judge, str) and self.ours.values is not None:
            # llama.cpp reads GELU from a table of f16.
            self.tolerance = max(1e-4, 4 * float(np.abs(self.judge - self.ours.values).max()))

    def found(self, change: dict):
        """The judge's values and the program's. Where the program names a key in its refusal, nobody else is asked."""
        rewritten(self.source, self.path, change)
        ours = Ours(self.program, self.path, self.prompts)
        if ours.values is None and any(key in ours.said for key in change):
            return "not asked", ours
        return judged(self.path, self.ids, self.is_encoder), ours

    def same(self, one: np.ndarray, other: np.ndarray) -> bool:
        return one.shape == other.shape and bool(np.abs(one - other).max() <= self.tolerance)  # NaN is not

    def try_change(self, change: dict) -> str | None:
        """The verdict on a change; `None` if the file says the same already."""
        values = {key: value_of(self.reader, key, value) for key, value in change.items()}
        if any(value is None for value in values.values()):
            return None
        known = repr(sorted(values.items()))
        if known not in self.seen:
            self.seen[known] = verdict = self.verdict(change, *self.found(change))
            self.verdicts.append((change, verdict))
            if is_wrong(verdict):
                print(f"{self.source.parent.name}: {change}: {verdict}", flush=True)
        return self.seen[known]

    def verdict(self, change: dict, judge, ours: Ours) -> str:
        names = [key for key in change if key in ours.said]
        if ours.values is None and names:
            return "refused"
        is_ours_changed = ours.values is not None and not self.same(ours.values, self.ours.values)
        if isinstance(judge, str):
            return "llama.cpp refuses; " + ("refused" if ours.values is None else "read" if is_ours_changed else "changes nothing")
        is_changed = not self.same(judge, self.judge)
        if ours.values is None:
            # A tensor without its part in the model is named instead.
            is_named = names or re.search(r"tensor|shape", ours.said)
            return "refused" if is_named else f"REFUSED WITHOUT ITS NAME: {ours.said.splitlines()[-1]}"
        if self.same(ours.values, judge):
            return "read" if is_changed else "changes nothing"
        if names:
            return "named in a note"
        if AS_TRANSFORMERS & change.keys():
            return "as transformers, which llama.cpp does not read"
        off = float(np.abs(ours.values - judge).max()) if ours.values.shape == judge.shape else float("inf")
        return f"DIFFERS by {off:.2g}: " + ("not read" if not is_ours_changed else "read otherwise" if is_changed else "llama.cpp does not read it")

    def run(self, names: list[str]) -> None:
        for key in names:
            probes = [self.try_change({key: value}) for value in PROBES]
            if all(probe == "refused" for probe in probes):
                values = NEUTRAL
            else:
                values = [] if all(probe in ("changes nothing", "refused") for probe in probes) else VALUES
            for value in values:
                self.try_change({key: value})
        for change in TOGETHER:
            self.try_change(change)


def written_otherwise(path: Path, name: str) -> None:
    """A file with other sizes. It is written in a process of its own: one that has imported torch is slow to fork."""
    from fixtures import gguf_files

    model_type, arch, sizes, kinds = gguf_files.FILES[name]
    gguf_files.FILES[name] = model_type, arch, {**sizes, **FILES[name]}, kinds
    gguf_files.write_file(path, name, 5)


def sources(folder: Path, names: list[str] | None) -> list[tuple[str, Path]]:
    """The committed files, and those that are written otherwise."""
    found = []
    for path in sorted((ROOT / "gguf").iterdir()):
        name = path.name
        if names and name not in names or name == "few-bits":
            continue
        if name in FILES:
            path = folder / name
            gguf_judge.apart(written_otherwise, path, name, seconds=120)
        found.append((name, path / "model.gguf"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--files", nargs="+")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    names = keys()
    counts, by_verdict, wrong = collections.Counter(), collections.defaultdict(lambda: collections.defaultdict(set)), []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name, source in sources(folder, arguments.files):
            sweep = Sweep(arguments.program, source, folder)
            if not sweep.tolerance or sweep.tolerance > 0.05:
                wrong.append(f"LEFT OUT: {name}: llama.cpp {sweep.judge if isinstance(sweep.judge, str) else 'runs it'}; the program: {sweep.ours.said or sweep.tolerance}")
                print(wrong[-1], flush=True)
                continue
            sweep.run(names)
            for change, verdict in sweep.verdicts:
                counts[verdict.split(":")[0]] += 1
                key = " + ".join(change)
                by_verdict[key][verdict.split(":")[0]].add(name)
                if is_wrong(verdict):
                    wrong.append(f"{name}: {change}: {verdict}")
            print(f"{name}: {len(sweep.verdicts)} changes, tolerance {sweep.tolerance:.2g}", flush=True)
    lines = ["| keys | verdicts |", "|---|---|"]
    for key, verdicts in sorted(by_verdict.items()):
        if set(verdicts) <= {"refused", "changes nothing", "llama.cpp refuses; refused"}:
            continue
        said = "; ".join(f"{verdict}: {', '.join(sorted(files))}" for verdict, files in sorted(verdicts.items()))
        lines.append(f"| `{key}` | {said} |")
    table = "\n".join(lines)
    print(table)
    print("\n".join(wrong))
    print(f"{len(names)} keys, {sum(counts.values())} changes: {dict(counts)}; {len(wrong)} wrong")
    if arguments.table:
        arguments.table.write_text(table + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
