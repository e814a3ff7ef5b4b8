"""Converts a small random model of each architecture by llama.cpp's own converter, and compares the program with both.

    cd weights; pip install llama-cpp-python            # and the sources of the same llama.cpp in any folder: SOURCE
    python -m sweep.gguf_architectures PROGRAM SOURCE [--only NAME ..] [--keep FOLDER] [--table FILE]    # some minutes

Each case is a checkpoint of transformers, or one with the names that code on the Hub gives the same arithmetic. SOURCE's
`convert_hf_to_gguf.py` makes a GGUF file of it, for which this script replaces the tokenizer alone. The greedy tokens of the program
must be llama.cpp's, and its logits those of transformers within twice transformers' own error against float64 and four ulp of the
largest; an encoder's hidden states likewise. A model that attends to both sides generates no tokens: llama.cpp's logits must be within
5e-3 of the largest. Exits with 1 if one is not, or if an architecture that the program reads has no case. The verdicts of the last whole run
are in `gguf_architectures.md`, which `--table` wrote.

    python -m sweep.gguf_architectures PROGRAM SOURCE --type f16 --commit --only NAME ..

writes the cases that are right into `gguf-architectures`, with what is expected of them.
"""

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy

from fixtures import manifest
from sweep.gguf_cases import CASES

ROOT = Path(__file__).parent.parent
N_TOKENS = 10

CONVERT = """
import json, logging, sys, torch
from pathlib import Path
logging.disable(logging.INFO)
sys.path.insert(0, sys.argv[1])
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
from conversion.base import gguf
for made in json.loads(sys.argv[2]):
    folder = Path(made)
    try:
        hparams = ModelBase.load_hparams(folder, False)
        kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
        class Tiny(kind):
            model_arch = kind.model_arch
            no_mtp = not hparams.get("mtp_num_hidden_layers")
            def set_vocab(self):
                text = self.hparams.get("text_config", self.hparams)
                n, add = text["vocab_size"], self.gguf_writer
                add.add_tokenizer_model("gpt2")
                add.add_tokenizer_pre("gpt-2")
                add.add_token_list(["<s>", "<pad>", "</s>"] + [f"w{i}" for i in range(3, n)])
                add.add_token_types([3, 3, 3] + [1] * (n - 3))
                add.add_token_merges(["w3 w4"])
                add.add_bos_token_id(0)
                add.add_eos_token_id(2)
                add.add_token_type_count(text.get("type_vocab_size") or 1)
        Tiny.__name__ = kind.__name__
        with torch.inference_mode():
            model = Tiny(folder, gguf.LlamaFileType.MOSTLY_F16 if sys.argv[3] == "f16" else gguf.LlamaFileType.ALL_F32, folder / "model.gguf", model_name="tiny")
            if hasattr(model, "impl"):
                model.impl.set_vocab = lambda: Tiny.set_vocab(model.impl)
            model.write()
        wanted = (folder / "architecture.txt").read_text()
        if wanted:  # of a converter that fails, though it would write the same
            own = gguf.MODEL_ARCH_NAMES[kind.model_arch]
            source, target = gguf.GGUFReader(folder / "model.gguf"), gguf.GGUFWriter(folder / "renamed.gguf", wanted)
            for key, field in source.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    key, value, kind_of = key.replace(own + ".", wanted + "."), field.contents(), field.types[0]
                    target.add_array(key, value) if kind_of == gguf.GGUFValueType.ARRAY else target.add_key_value(key, value, kind_of)
            for tensor in source.tensors:
                target.add_tensor(tensor.name, tensor.data)
            for step in (target.write_header_to_file, target.write_kv_data_to_file, target.write_tensors_to_file, target.close):
                step()
            (folder / "renamed.gguf").rename(folder / "model.gguf")
    except (Exception, SystemExit) as error:
        (folder / "error.txt").write_text(f"{type(error).__name__}: {error}")
"""

JUDGE = """
import json, sys, llama_cpp
import numpy as np
from pathlib import Path
F32 = llama_cpp.GGML_TYPE_F32
prompts = json.loads(sys.argv[1])
for made in json.loads(sys.argv[2]):
    path = Path(made) / "model.gguf"
    is_encoder, is_bidirectional = ((Path(made) / flag).exists() for flag in ("encoder", "bidirectional"))
    (Path(made) / "judged.json").write_text(json.dumps("it ended"))
    try:
        model = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=not is_encoder, embedding=is_encoder, verbose=False,
            type_k=F32, type_v=F32, flash_attn=False, **({"pooling_type": 0} if is_encoder else {}))
        rows = []
        for prompt in prompts:
            model.reset()
            if is_encoder or is_bidirectional:
                context = model._ctx.ctx
                run = llama_cpp.llama_encode if llama_cpp.llama_model_has_encoder(model._model.model) else llama_cpp.llama_decode
                batch = llama_cpp.llama_batch_init(len(prompt), 0, 1)
                batch.n_tokens = len(prompt)
                for i, token in enumerate(prompt):
                    batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
                    batch.seq_id[i][0] = 0
                assert run(context, batch) == 0
                width = llama_cpp.llama_model_n_embd(model._model.model) if is_encoder else model.n_vocab()
                numbers = llama_cpp.llama_get_embeddings_ith if is_encoder else llama_cpp.llama_get_logits_ith
                rows.append([[numbers(context, i)[j] for j in range(width)] for i in range(len(prompt))])
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True) if llama_cpp.llama_get_memory(context) else None
                continue
            row = []
            if (Path(made) / "joined").exists():
                context = model._ctx.ctx
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
                def batch(tokens, first):
                    made_of = llama_cpp.llama_batch_init(len(tokens), 0, 1)
                    made_of.n_tokens = len(tokens)
                    for i, token in enumerate(tokens):
                        made_of.token[i], made_of.pos[i], made_of.n_seq_id[i], made_of.logits[i] = token, first + i, 1, 1
                        made_of.seq_id[i][0] = 0
                    return made_of
                assert llama_cpp.llama_encode(context, batch(prompt, 0)) == 0
                token = llama_cpp.llama_model_decoder_start_token(model._model.model)
                n_words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model._model.model))
                while len(row) < int(sys.argv[3]):
                    assert llama_cpp.llama_decode(context, batch([token], len(row))) == 0
                    logits = llama_cpp.llama_get_logits_ith(context, 0)
                    token = max(range(n_words), key=lambda i: logits[i])
                    row.append(token)
                    if token == 2: break
                rows.append(row)
                continue
            model.eval(prompt)
            while len(row) < int(sys.argv[3]):
                row.append(int(model.scores[model.n_tokens - 1].argmax()))
                if row[-1] == 2: break
                model.eval(row[-1:])
            rows.append(row)
        (Path(made) / "judged.json").write_text(json.dumps(rows))
    except Exception as error:
        (Path(made) / "judged.json").write_text(json.dumps(str(error)))
"""

EXPECT = """
import json, sys, torch, transformers
import numpy as np
import safetensors.numpy
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from fixtures import checkpoint, hub_config, remote
from fixtures.double import in_double
ids = torch.tensor(json.loads(sys.argv[2]))
for made in json.loads(sys.argv[3]):
    try:
        with remote.translated(Path(made) / "as-transformers") as folder:
            config = hub_config.read(folder)
            kind = remote.class_named(json.loads((folder / "config.json").read_text())["architectures"][0])
            options = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
            model = kind.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager").eval()
        name = "last_hidden_state" if (Path(made) / "encoder").exists() else "logits"
        with torch.no_grad():
            found = model(ids, **options)[name]
            with in_double():
                double = model.double()(ids, **options)[name]
        safetensors.numpy.save_file({"f32": found.numpy(), "f64": double.numpy().astype(np.float64)}, Path(made) / "expected.safetensors")
    except Exception as error:
        (Path(made) / "error.txt").write_text(f"transformers: {type(error).__name__}: {error}")
"""


def ours(program: str, folder: Path, prompts: Path, generates: bool) -> dict | str:
    """Tokens and logits of the program, or what it says."""
    out, path, found = folder / "out.safetensors", folder / "model.gguf", {}
    for command in ["generate", "run"] if generates else ["run"]:
        both = prompts.with_name("both.safetensors") if (folder / "joined").exists() else prompts
        given = ["--input-ids", prompts, "--max-new-tokens", str(N_TOKENS)] if command == "generate" else ["--input", both]
        done = subprocess.run([program, command, "--model", path, *given, "--output", out], capture_output=True, text=True)
        if done.returncode:
            return (done.stderr.strip() or "nothing").splitlines()[-1]
        found |= safetensors.numpy.load_file(out)
    return found


def same(one: list, other: list) -> bool:
    """Rows of the program are filled up behind their ends."""
    return all(list(a[: len(b)]) == list(b) for a, b in zip(one, other))


def verdict(program: dict | str, folder: Path) -> tuple[bool, str]:
    """Whether all is as it must be, and what is to be said."""
    if isinstance(program, str):
        return False, f"refused: {program}"
    judged = json.loads((folder / "judged.json").read_text())
    expected = safetensors.numpy.load_file(folder / "expected.safetensors")
    is_encoder = (folder / "encoder").exists()
    found = program["last_hidden_state" if is_encoder else "logits"]
    if found.shape != expected["f64"].shape:
        return False, f"shape {found.shape}, not {expected['f64'].shape}"
    own, theirs = (np.abs(result - expected["f64"]).max() for result in (found, expected["f32"]))
    bound = 2 * theirs + 4 * float(np.spacing(np.float32(np.abs(expected["f64"]).max())))
    is_right = bool(own <= bound)
    said = f"{own:.1e} from float64, transformers {theirs:.1e}{'' if is_right else ' NOT WITHIN THE RULE'}"
    if isinstance(judged, str):
        return False, f"{said}; llama.cpp: {judged}"
    if "tokens" not in program:
        off = float(np.abs(np.array(judged) - expected["f64"]).max() / np.abs(expected["f64"]).max())
        if other := (folder / "other.txt").read_text():
            return is_right, f"{said}; llama.cpp {off:.1e} of the largest, since {other}"
        return is_right and off < 5e-3, f"{said}; llama.cpp {off:.1e} of the largest{'' if off < 5e-3 else ' TOO FAR'}"
    alike, other = same(program["tokens"].tolist(), judged), (folder / "other.txt").read_text()
    if other and not alike:
        return is_right, f"{said}; tokens not as llama.cpp, since {other}"
    return is_right and alike, f"{said}; tokens {'as llama.cpp' if alike else 'NOT AS LLAMA.CPP'}"


def architectures() -> set[str]:
    """Those of the program's tables."""
    tables = (ROOT.parent / "src/checkpoint/gguf/architectures").glob("*.json")
    return {name for table in tables for name in re.findall(r'"name": "(\S+)", "read_as"', table.read_text())}


def architecture(folder: Path) -> str:
    """The one in a case's file; empty if the file was not made."""
    path = folder / "model.gguf"
    return gguf.GGUFReader(path).get_field("general.architecture").contents() if path.exists() else ""


def commit(folder: Path, name: str, ids: np.ndarray) -> None:
    """Keeps a file with two of its prompts."""
    kept = ROOT / "gguf-architectures" / name
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "model.gguf", kept)
    expected, judged = safetensors.numpy.load_file(folder / "expected.safetensors"), json.loads((folder / "judged.json").read_text())
    result = "last_hidden_state" if (folder / "encoder").exists() else "logits"
    tensors = {"input_ids": ids[:2].astype(np.uint32), result: expected["f32"][:2], f"{result}.f64": expected["f64"][:2]}
    if result == "logits" and not isinstance(judged, str) and not (folder / "bidirectional").exists() and not (folder / "other.txt").read_text():
        tensors["tokens"] = np.array([row + [0] * (N_TOKENS - len(row)) for row in judged[:2]], np.uint32)
    safetensors.numpy.save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, kept / "expected.safetensors")
    manifest.write(ROOT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("source", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--commit", action="store_true")
    parser.add_argument("--type", default="f32", choices=["f32", "f16"])
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    chosen = {name: case for name, case in CASES.items() if not arguments.only or name in arguments.only}
    ids = np.random.default_rng(1).integers(3, 40, (4, 6))
    with tempfile.TemporaryDirectory() as scratch:
        root = arguments.keep or Path(scratch)
        root.mkdir(parents=True, exist_ok=True)
        prompts = root / "prompts.safetensors"
        safetensors.numpy.save_file({"input_ids": ids}, prompts)
        safetensors.numpy.save_file({"input_ids": ids, "decoder_input_ids": ids}, root / "both.safetensors")
        folders = {}
        for seed, (name, case) in enumerate(CASES.items()):
            if name in chosen and not (root / name / "model.gguf").exists():
                try:
                    case.write(root / name, seed)
                except Exception as error:
                    (root / name / "error.txt").write_text(f"writing: {type(error).__name__}: {error}")
            folders[name] = root / name
        todo = [str(folders[name]) for name in chosen if not list(folders[name].glob("model.gguf")) + list(folders[name].glob("error.txt"))]
        python = [sys.executable, "-c"]
        if todo:
            subprocess.run([*python, CONVERT, arguments.source, json.dumps(todo), arguments.type], check=True, capture_output=True)
            todo = [made for made in todo if (Path(made) / "model.gguf").exists()]
            subprocess.run([*python, EXPECT, Path(__file__).parent.parent, json.dumps(ids.tolist()), json.dumps(todo)], check=True, capture_output=True)
            while todo:
                subprocess.run([*python, JUDGE, json.dumps(ids.tolist()), json.dumps(todo), str(N_TOKENS)], capture_output=True)
                todo = [made for made in todo if not (Path(made) / "judged.json").exists()]  # an assertion ends the process
        lines, n_wrong, passed = [], 0, set()
        for name in chosen:
            folder = folders[name]
            error = folder / "error.txt"
            is_right, said = (False, error.read_text()) if error.exists() else verdict(
                ours(arguments.program, folder, prompts, not (folder / "encoder").exists() and not (folder / "bidirectional").exists()), folder
            )
            n_wrong += not is_right
            if arguments.commit and is_right:
                commit(folder, name, ids)
            of = architecture(folder)
            passed |= {of} if is_right else set()
            lines.append(f"| {of} | {name} | {'' if is_right else 'WRONG: '}{said} |")
            print(lines[-1], flush=True)
    known = architectures()
    unseen = set() if arguments.only else known - passed
    lines += [f"| {of} | | WRONG: no case is right |" for of in sorted(unseen)]
    counted = f"{len(chosen)} cases, {n_wrong} wrong; {len(known & passed)} of {len(known)} architectures have a case that is right"
    print(counted, file=sys.stderr)
    if arguments.table:
        versions = ", ".join(f"{of} {importlib.metadata.version(of)}" for of in ("llama-cpp-python", "transformers"))
        head = ["# Verdicts of `gguf_architectures.py`", "", f"{counted} ({versions}, files of {arguments.type}).", "", "| architecture | case | verdict |", "|---|---|---|"]
        arguments.table.write_text("\n".join([*head, *sorted(lines)]) + "\n")
    sys.exit(bool(n_wrong or unseen))


if __name__ == "__main__":
    main()
