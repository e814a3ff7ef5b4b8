"""Changes every key of small GGUF files, one at a time, and compares the program's logits with llama.cpp's.

    cd weights; pip install llama-cpp-python
    python -m sweep.gguf_keys PROGRAM [--cases FOLDER] [--files NAME ..] [--record FILE]  # exits with 1 if anything differs silently
    python -m sweep.gguf_keys --tabulate RECORD ..  # prints the verdicts of runs in parts; the last on a change counts

The files are the committed ones, and with `--cases` those of every architecture, which `gguf_architectures.py --keep FOLDER` made.
Each is written anew with other values of a key, or without it. llama.cpp's library holds the names of the keys; which of them it reads for
an architecture, and of what type, it says itself where all are of a wrong type. Where llama.cpp's logits (of an encoder: its
hidden states) change, the program's must become the same, or the program must name the key in a refusal or a note. Where they do not
change, the program's must not change either. A key that llama.cpp does not read must be named, or change nothing. Values are the same within
3e-4 of the largest, or four times the difference before any change. Where both change, the difference may be twice that, or four times the
program's rounding, which float64 tells: larger scores enlarge the rounding of both, and that of llama.cpp's table for GELU. `FILES` says what is written
otherwise than in the committed file, for llama.cpp opens no other.
"""

import argparse
import collections
import json
import os
import re
import struct
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
ONE_THREAD = os.environ | {"RAYON_NUM_THREADS": "1"}
# llama.cpp has the file's epsilon in the norms of latent attention too, and transformers 1e-6.
LATENT = {"attention.layer_norm_rms_epsilon": 1e-6}
# A gpt-oss file does not say that YaRN's limits are not rounded.
# llama.cpp divides by one less for the deviation in 10 sparse layers of Gemma 3n, whatever the file says.
SPARSE = [1.6448536 * (36 / 35) ** 0.5] * 10 + [float("-inf")] * 2
STARTS = {"gemma3n": {"activation_sparsity_scale": SPARSE}, "deepseek2": LATENT, "kimi-linear": LATENT, "minicpm3": LATENT, "qwen2vl": LATENT, "gpt-oss": dict.fromkeys(f"rope.scaling.{key}" for key in ("type", "factor", "yarn_beta_fast", "yarn_beta_slow"))}
# The words after the first three.
LETTERS = [chr(first + i) for first in (97, 65, 0x391, 0x430) for i in range(17)]

# By the type that llama.cpp expects; others for those that it does not read.
VALUES = {
    "u32": [0, 1, 3, "unequal"],
    "i32": [0, 1, 3, "unequal"],
    "f32": [0.0, 3.0],
    "bool": [True, False],
    "str": ["none", "yarn", "gelu"],
    "array": [3, "unequal", "flags", "ones", [2, 1, 1, 0]],
    "": [3],
}
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
# Keys that transformers reads in its own way, by the architectures; `docs/gguf.md` lists them.
# llama.cpp reads no epsilon for Qwen 2 VL.
LATENT_ONES = {"deepseek2", "kimi-linear", "minicpm3", "qwen2vl"}
AS_TRANSFORMERS = {
    **dict.fromkeys(["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor"], None),
    "attention.sliding_window": {"phi3", "exaone4"}, "attention.sliding_window_pattern": {"exaone4"}, "attention.layer_norm_rms_epsilon": LATENT_ONES,
    "expert_group_count": {"deepseek2"}, "expert_group_used_count": {"deepseek2"}, "rope.scaling.type": {"gpt-oss"},
    # Which llama.cpp has as constants.
    **dict.fromkeys(["activation_sparsity_scale", "altup.active_idx", "attention.shared_kv_layers", "final_logit_softcapping"], {"gemma3n"}),
}


def keys() -> list[str]:
    """Names of keys in llama.cpp's library, without the architecture."""
    library = next((Path(llama_cpp.__file__).parent / "lib").glob("libllama.so")).read_bytes()
    found = re.findall(rb"(?<=\0)(?:%s\.|(?=xielu\.))([a-z0-9_.]*[a-z0-9_])(?=\0)", library)
    return sorted({key.decode() for key in found})


def value_of(reader, key: str, value):
    """A value that depends on the file: `same` for each block, `unequal`, a flag for each; `twice` the file's own, or one `more`."""
    arch = reader.fields["general.architecture"].contents()
    n = reader.fields[f"{arch}.block_count"].contents()
    own = reader.fields.get(f"{arch}.{key}")
    own = own and own.contents()
    if value == "flags":
        return [i % 2 == 0 for i in range(n)]
    if value == "ones":
        return [1.0] * n
    if value in ("twice", "more"):
        return None if isinstance(own, (bool, list, str, type(None))) else own * 2 if value == "twice" else own + 1
    if value in ("same", "unequal"):
        found = own if own is not None else reader.fields[f"{arch}.attention.head_count"].contents()
        return None if isinstance(found, (list, str)) else [found] * (n - 1) + [found * 2 if value == "unequal" else found]
    return value


class Stored:
    """The keys of a file as they are stored, so that one is changed without reading the tensors."""

    def __init__(self, path: Path):
        self.bytes = memoryview(path.read_bytes())
        self.at, self.keys = 24, {}
        self.n_tensors, n_keys = struct.unpack_from("<QQ", self.bytes, 8)
        for _ in range(n_keys):
            key = self.text()
            begin = self.at
            self.skip(self.number("<I"))
            self.keys[key] = bytes(self.bytes[begin : self.at])
        begin = self.at
        for _ in range(self.n_tensors):
            self.text()
            n_dimensions = self.number("<I")
            self.at += 8 * n_dimensions + 12
        self.tensors, self.data = self.bytes[begin : self.at], self.bytes[-(-self.at // 32) * 32 :]

    def number(self, kind: str) -> int:
        (found,) = struct.unpack_from(kind, self.bytes, self.at)
        self.at += struct.calcsize(kind)
        return found

    def text(self) -> str:
        n = self.number("<Q")
        self.at += n
        return bytes(self.bytes[self.at - n : self.at]).decode()

    def skip(self, kind: int) -> None:
        if kind == 8:
            self.text()
        elif kind == 9:
            of, n = self.number("<I"), self.number("<Q")
            for _ in range(n):
                self.skip(of)
        else:
            self.at += [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind]

    def write(self, path: Path, change: dict) -> None:
        """Writes the file with other keys; those of `None` are left out."""
        changed = {key: bytes_of(value) for key, value in change.items() if value is not None}
        keys = {key: stored for key, stored in self.keys.items() if key not in change} | changed
        head = b"GGUF" + struct.pack("<IQQ", 3, self.n_tensors, len(keys))
        head += b"".join(text_of(key) + stored for key, stored in keys.items()) + self.tensors
        path.write_bytes(head + bytes(-len(head) % 32) + self.data)


def text_of(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


# The numbers of types, and how one value of them is stored.
TYPES = {bool: (7, lambda value: struct.pack("<?", value)), int: (4, lambda value: struct.pack("<I", value)), float: (6, lambda value: struct.pack("<f", value)), str: (8, text_of)}


def bytes_of(value) -> bytes:
    """A value with its type before it; bytes are so already."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        kind, one = TYPES[type(value[0])]
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(map(one, value))
    kind, one = TYPES[type(value)]
    return struct.pack("<I", kind) + one(value)


def types_read(stored: Stored, arch: str, names: list[str], path: Path, worker) -> dict[str, str]:
    """The keys that llama.cpp reads for a file, with the type that it expects. It refuses the first that has another type."""
    found = {}
    for wrong in ("nobodys", ["nobodys"] * 3):
        # An unknown word for the type of scaling stops the process.
        change = {full(arch, key): wrong for key in names if key != "rope.scaling.type" or wrong != "nobodys"}
        while change:
            stored.write(path, change)
            said = worker.ask(gguf_judge.refusal, path)
            named = [key for key in change if said and re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", said)]
            if not named:
                if said and "wrong shape" not in said and "hyperparameters" in said:
                    raise ValueError(said)
                break
            expected = re.search(r"expected type (\w+)", said)
            for key in named:
                change.pop(key)
                found.setdefault(key, expected[1] if expected else "array")
    return {key: found[full(arch, key)] for key in names if full(arch, key) in found}


def named_here() -> str:
    """The program's sources: a key whose name is not in them is not read."""
    return "".join(path.read_text() for folder in ("src/checkpoint/gguf", "crates/files/src/gguf") for path in (ROOT.parent / folder).rglob("*") if path.is_file())


def full(arch: str, key: str) -> str:
    return key if key.startswith("xielu.") else f"{arch}.{key}"


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


class Ours:
    """Logits or hidden states of the program, and what it says; or its refusal."""

    def __init__(self, program: str, path: Path, prompts: Path, is_encoder: bool, dtype: str = "f32"):
        self.values, out = None, path.with_suffix(".safetensors")
        done = subprocess.run([program, "run", "--model", path, "--input", prompts, "--output", out, "--dtype", dtype], capture_output=True, text=True, env=ONE_THREAD)
        self.said = done.stderr.strip()
        if done.returncode == 0:
            found = safetensors.numpy.load_file(out)
            self.values = found["last_hidden_state" if is_encoder else "logits"]
            out.unlink()


def is_wrong(verdict: str) -> bool:
    return verdict[:7] in ("DIFFERS", "REFUSED")


class Sweep:
    """The verdicts on one file."""

    READ = "keys read by llama.cpp"

    def __init__(self, program: str, name: str, source: Path, folder: Path, is_encoder: bool, worker):
        self.program, self.name, self.path, self.is_encoder, self.worker = program, name, folder / "changed.gguf", is_encoder, worker
        self.arch = gguf.GGUFReader(source).fields["general.architecture"].contents()
        begin = folder / "begin.gguf"
        Stored(source).write(begin, {full(self.arch, key): value for key, value in STARTS.get(self.arch, {}).items()})
        self.reader, self.stored = gguf.GGUFReader(begin), Stored(begin)
        n = next(tensor for tensor in self.reader.tensors if tensor.name == "token_embd.weight").shape[1]
        self.prompts = folder / "prompts.safetensors"
        self.divisor = self.divisor_of(tensor.name for tensor in self.reader.tensors)
        self.tolerance, self.verdicts, self.seen = 0.0, [], {}
        # Other tokens where two experts are as likely as each other for these.
        for seed in range(1, 5):
            self.ids = np.random.default_rng(seed).integers(3, n, (ROWS, SEQ))
            decoder = {"decoder_input_ids": self.ids} if self.arch == "t5" else {}
            safetensors.numpy.save_file({"input_ids": self.ids, **decoder}, self.prompts)
            self.judge, self.ours = self.found({})
            if isinstance(self.judge, str) or self.ours.values is None:
                break
            # llama.cpp reads GELU from a table of f16.
            largest, off = float(np.abs(self.judge).max()), float(np.abs(self.judge - self.ours.values).max())
            self.tolerance = max(3e-4 * largest, 4 * off)
            if self.tolerance < 0.05:
                break

    def stored_width(self) -> int:
        return int(self.reader.fields[f"{self.arch}.embedding_length"].contents())

    def divisor_of(self, tensors) -> float:
        """What the program's logits are divided by: as in transformers, those of T5 where the words are tied. llama.cpp divides none."""
        return self.stored_width() ** 0.5 if self.arch == "t5" and "output.weight" not in tensors else 1.0

    def found(self, change: dict, is_asked: bool = True):
        """The judge's values and the program's."""
        self.stored.write(self.path, {full(self.arch, key): None if value == "absent" else value for key, value in change.items()})
        ours = Ours(self.program, self.path, self.prompts, self.is_encoder)
        if not is_asked:
            return self.judge, ours
        return self.asked(self.divisor), ours

    def rounding(self, ours: Ours) -> float:
        """How far the program's values for the file that was written last are from those in float64."""
        double = Ours(self.program, self.path, self.prompts, self.is_encoder, "f64").values
        return float(np.abs(ours.values - double).max()) if double is not None else 0.0

    def asked(self, divisor: float):
        """llama.cpp's values for the file that was written last, or its error."""
        judge = self.worker.ask(gguf_judge.run, self.path, self.ids.tolist(), 0 if self.is_encoder else None)
        return judge if isinstance(judge, str) else np.stack(judge) / divisor

    def is_judged(self) -> bool:
        """Whether the program and llama.cpp agree on the file before any change, closely enough to see one."""
        return bool(self.tolerance) and self.tolerance <= max(0.05, 0.05 * float(np.abs(self.judge).max()))

    def same(self, one: np.ndarray, other: np.ndarray) -> bool:
        return one.shape == other.shape and bool(np.abs(one - other).max() <= self.tolerance)  # NaN is not

    def try_change(self, change: dict, is_asked: bool = True) -> str | None:
        """The verdict on a change; `None` if there is no such value. Whoever is not asked is known to change nothing."""
        values = {key: value_of(self.reader, key, value) for key, value in change.items()}
        if any(value is None for value in values.values()):
            return None
        known = repr(sorted(values.items()))
        if known not in self.seen:
            self.seen[known] = verdict = self.verdict(change, *self.found(values, is_asked))
            self.verdicts.append((change, verdict))
            if is_wrong(verdict):
                print(f"{self.name}: {change}: {verdict}", flush=True)
        return self.seen[known]

    def verdict(self, change: dict, judge, ours: Ours) -> str:
        names = [key for key in change if key in ours.said]
        if ours.values is None and names:
            has_numbers = not isinstance(judge, str) and np.isfinite(judge).all()
            return "refused, without effect in llama.cpp" if has_numbers and self.same(judge, self.judge) else "refused"
        is_ours_changed = ours.values is not None and not self.same(ours.values, self.ours.values)
        if isinstance(judge, str):
            return "llama.cpp refuses; " + ("refused" if ours.values is None else "read" if is_ours_changed else "changes nothing")
        if not np.isfinite(judge).all():
            return "llama.cpp gives no numbers; " + ("refused" if ours.values is None else "read")
        is_changed = not self.same(judge, self.judge)
        if ours.values is None:
            # Another key that does not fit this one may be named instead, or a tensor without its part in the model.
            is_named = re.search(rf"tensor|shape|\"{re.escape(self.arch)}\.", ours.said)
            return "refused by another name" if is_named else f"REFUSED WITHOUT ITS NAME: {ours.said.splitlines()[-1]}"
        if self.same(ours.values, judge):
            return "read" if is_changed else "changes nothing"
        if names:
            return "named in a note"
        is_other_scaling = change.get("rope.scaling.type", "yarn") != "yarn"
        if not is_other_scaling and any(key in AS_TRANSFORMERS and (AS_TRANSFORMERS[key] is None or self.arch in AS_TRANSFORMERS[key]) for key in change):
            return "as transformers, and not as llama.cpp"
        off = float(np.abs(ours.values - judge).max()) if ours.values.shape == judge.shape else float("inf")
        if is_changed and is_ours_changed and off <= max(2 * self.tolerance, 4 * self.rounding(ours)):
            return "read"
        return f"DIFFERS by {off:.2g}: " + ("not read" if not is_ours_changed else "read otherwise" if is_changed else "llama.cpp does not read it")

    def run(self, names: list[str]) -> None:
        names = sorted({*names, *(key.removeprefix(f"{self.arch}.") for key in self.stored.keys if key.startswith((f"{self.arch}.", "xielu.")))})
        types = types_read(self.stored, self.arch, names, self.path, self.worker)
        self.n_read = len(types)
        here = named_here()
        unknown = [key for key in names if key not in types and key not in here]
        self.try_change(dict.fromkeys(unknown, 3), False)
        for key in names:
            is_there = full(self.arch, key) in self.stored.keys
            if key in unknown and not is_there:
                continue
            for value in VALUES[types.get(key, "")] + ["absent"] * is_there:
                self.try_change({key: value}, key in types)
        for change in TOGETHER:
            self.try_change(change)
        # All at once that llama.cpp does not need: it has defaults for these, and a class of transformers may have others.
        optional = {}
        for key in names:
            if full(self.arch, key) in self.stored.keys and not isinstance(self.found(optional | {key: "absent"})[0], str):
                optional[key] = "absent"
        self.try_change(optional)


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
        if names and name not in names or name in ("few-bits", "few-values", "grids", "numbers"):
            continue
        if name in FILES:
            path = folder / name
            gguf_judge.apart(written_otherwise, path, name, seconds=120)
        found.append((name, path / "model.gguf"))
    return found


def files(folder: Path, cases: Path | None, names: list[str] | None) -> list[tuple[str, Path, bool]]:
    """Names, files that llama.cpp opens, and whether they are of encoders."""
    found = []
    for name, source in [] if cases else sources(folder, names):
        rewritten(source, folder / f"{name}.gguf", {})
        found.append((name, folder / f"{name}.gguf", name == "bert"))
    for path in (cases / name for name in names or sorted(path.name for path in cases.iterdir())) if cases else []:
        if (path / "model.gguf").exists():
            found.append((path.name, path / "model.gguf", (path / "encoder").exists()))
    return found


def tabulate(records: list[Path]) -> str:
    """Verdicts by case, and the changes that are wrong or are followed as transformers follows them."""
    verdicts = {}
    for line in (line for record in records for line in record.read_text().splitlines()):
        name, change, verdict = json.loads(line)
        verdicts[name, json.dumps(change)] = verdict.split(" by ")[0] if verdict.startswith("DIFFERS") else verdict.split(":")[0]
    kinds = sorted(set(verdicts.values()))
    counts = collections.Counter((name, verdict) for (name, _), verdict in verdicts.items())
    names = sorted({name for name, _ in verdicts})
    totals = [sum(counts[name, kind] for name in names) for kind in kinds]
    lines = [f"{len(names)} cases, {len(verdicts)} changes (llama-cpp-python {llama_cpp.__version__}).", "", f"| case | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(str(counts[name, kind]) for kind in kinds)} |" for name in names]
    lines += [f"| all | {' | '.join(map(str, totals))} |", ""]
    special = collections.defaultdict(set)
    for (name, change), verdict in verdicts.items():
        if is_wrong(verdict) or verdict.startswith(("as transformers", "refused, but")):
            special[verdict, " + ".join(json.loads(change))].add(name)
    lines += ["| verdict | keys | cases |", "|---|---|---|"]
    lines += [f"| {verdict} | `{keys}` | {', '.join(sorted(cases))} |" for (verdict, keys), cases in sorted(special.items())]
    without = collections.defaultdict(set)
    for (name, change), verdict in verdicts.items():
        values = list(json.loads(change).values())
        if len(values) > 1 and set(values) == {"absent"}:
            without[verdict].add(name)
    lines += ["", "| without all keys that llama.cpp does not need | cases |", "|---|---|"] if without else []
    lines += [f"| {verdict} | {', '.join(sorted(cases))} |" for verdict, cases in sorted(without.items())]
    return "\n".join(lines)


def sweep_files(sweep_of: type[Sweep], parser: argparse.ArgumentParser, names: list[str]) -> None:
    """Sweeps the files that the command line names, and exits with 1 if anything is wrong. `parser` knows `--cases`."""
    if sys.argv[1:2] == ["--tabulate"]:
        print(tabulate([Path(record) for record in sys.argv[2:]]))
        return
    parser.add_argument("program")
    parser.add_argument("--files", nargs="+")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    worker = gguf_judge.Worker()
    counts, wrong, architectures = collections.Counter(), [], set()
    with tempfile.TemporaryDirectory() as folder:
        for name, source, is_encoder in files(Path(folder), arguments.cases, arguments.files):
            sweep = sweep_of(arguments.program, name, source, Path(folder), is_encoder, worker)
            if not sweep.is_judged():
                wrong.append(f"LEFT OUT: {name}: llama.cpp {sweep.judge if isinstance(sweep.judge, str) else 'runs it'}; the program: {sweep.ours.said or sweep.tolerance}")
                print(wrong[-1], flush=True)
                continue
            sweep.run(names)
            architectures.add(sweep.arch)
            for change, verdict in sweep.verdicts:
                verdict, _, more = verdict.partition(":")
                verdict = "DIFFERS" if verdict.startswith("DIFFERS") else verdict
                counts[verdict] += 1
                if is_wrong(verdict):
                    wrong.append(f"{name}: {change}: {verdict}{more}")
            print(f"{name}: {sweep.n_read} {sweep.READ}, {len(sweep.verdicts)} changes, tolerance {sweep.tolerance:.2g}", flush=True)
            if arguments.record:
                with arguments.record.open("a") as record:
                    record.writelines(json.dumps([name, change, verdict]) + "\n" for change, verdict in sweep.verdicts)
    print("\n".join(wrong))
    counted = f"{len(architectures)} architectures, {sum(counts.values())} changes: {dict(counts)}; {len(wrong)} wrong"
    print(f"{len(names)} keys, {counted}" if names else counted)
    sys.exit(bool(wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path)
    sweep_files(Sweep, parser, keys())


if __name__ == "__main__":
    main()
