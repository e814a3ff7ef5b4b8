"""Changes the keys of a GGUF file that are not the architecture's, one at a time, and compares texts' vectors and ends with llama.cpp's.

    cd weights; pip install llama-cpp-python
    python -m sweep.gguf_tokenizer_keys PROGRAM [--words NAME ..] [--table FILE]  # some minutes; exits with 1 if anything differs silently

A tiny Llama is given each tokenizer of `gguf-words`. Its vector of a text, that of the last token, depends on every token before: it is
the same in both programs only if their tokens are. A second model answers token i with token i + 1, and so shows which
tokens end an answer: these are compared with llama.cpp's own list. A change must make both the same as llama.cpp's, or be named in a
refusal or a note. `gguf_tokenizer_keys.md` has the verdicts of the last whole run.
"""

import argparse
import collections
import ctypes
import json
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

from .gguf_keys import ONE_THREAD, Stored

ROOT = Path(__file__).parent.parent
WORDS = {"pairs": "gpt2", "scores": "llama", "pieces": "bert", "unigram": "t5"}
TEXTS = ["The tide left  three small boats", " on the sand.", "l'été naît, Straße über Köln", "ТЕПЛО дома 12345", "<s>They're</s> here, aren't they?<mask>", "x", "ﬁne １２ ｘ"]
IDS = ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix", "middle"]
FLAGS = ["add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces", "escape_whitespaces", "normalizer.lowercase", "normalizer.strip_accents"]
# Of which llama.cpp's programs take their settings where the user says none; they are obeyed with `--sample`.
SAMPLING = {"temp": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.2, "penalty_repeat": 1.5}
OTHER_SAMPLING = {"xtc_probability": 0.5, "xtc_threshold": 0.2, "penalty_last_n": 8, "mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2, "sequence": "kpmt"}

# Of 32 bits with a sign, as llama.cpp reads them.
SIGNED = struct.pack("<IIQii", 9, 5, 2, 9, 11)
# llama.cpp ends at token 11, a punctuation mark, where a file of GPT-2's kind names no end.
# Unigram falls back to bytes where there are tokens for these, as the model does.
# A space at a text's beginning is the mark of its first word, as in tokenizer.json. WordPiece finds its special tokens by their texts.
BY_CHOICE = [
    ("tokenizer.ggml.eos_token_id", None), ("tokenizer.ggml.model", "t5"), ("tokenizer.ggml.remove_extra_whitespaces", False), ("tokenizer.ggml.remove_extra_whitespaces", None),
    ("tokenizer.ggml.unknown_token_id", None), ("tokenizer.ggml.seperator_token_id", None),
]


def changes(reader: gguf.GGUFReader) -> list[tuple[str, object]]:
    """Keys with other values; None leaves a key out."""
    own = {key: field.contents() for key, field in reader.fields.items()}
    t = "tokenizer.ggml."
    n, types = len(own[t + "tokens"]), [int(kind) for kind in own[t + "token_type"]]
    found = [(t + f"{name}_token_id", value) for name in IDS for value in (7, n - 3, n, None)]
    found += [(t + name, value) for name in FLAGS for value in (True, False, 1, None)]
    found += [(t + "model", value) for value in ("gpt2", "llama", "bert", "t5", "gemma4", "rwkv", "plamo2", "hybriddna", "none", "nobodys", None)]
    found += [(t + "pre", value) for value in ("default", "gpt-2", "llama-bpe", "tekken", "qwen2", "whitespace", "nobodys", None)]
    settled = [kind if kind != 1 else (4 if i % 11 == 0 else 1) for i, kind in enumerate(types)]
    control = [kind if kind != 1 else (3 if i % 11 == 0 else 1) for i, kind in enumerate(types)]
    unused = [kind if kind != 1 else (5 if i % 11 == 0 else 1) for i, kind in enumerate(types)]
    found += [(t + "token_type", value) for value in (settled, control, unused, [1] * n, types[: n // 2], None)]
    for name in ("scores", "merges"):
        if t + name in own:
            found += [(t + name, [float(x) for x in own[t + name][::-1]] if name == "scores" else own[t + name][::-1]), (t + name, None)]
    found += [(t + "precompiled_charsmap", value) for value in ([1, 2, 3], None)]
    found += [(t + "token_type_count", 3), (t + "suppress_tokens", SIGNED), (t + "tokens", own[t + "tokens"][::-1])]
    found += [("tokenizer.huggingface.json", "{}"), ("tokenizer.rwkv.world", "x"), ("tokenizer.chat_template", "A{{ messages[0].content }}"), ("tokenizer.chat_templates", ["other"]), ("tokenizer.chat_template.other", "B{{ messages[0].content }}")]
    found += [("general.name", value) for value in ("Phi-3 mini", "phi3", "other")]
    found += [("general.alignment", value) for value in (32, 8, 3, 0)] + [("general.file_type", 7), ("general.quantization_version", 1)]
    found += [(f"general.{name}", value) for name, value in [("type", "model"), ("type", "adapter"), ("type", "mmproj"), ("description", "x"), ("license", "mit"), ("url", "x"), ("author", "x"), ("version", "v1"), ("size_label", "1B"), ("basename", "x"), ("finetune", "x"), ("tags", ["a"]), ("languages", ["en"]), ("base_model.count", 1), ("base_model.0.name", "x"), ("dataset.count", 1), ("source.url", "x"), ("tensor_extra.name", ["x"])]]
    found += [(f"general.sampling.{name}", value) for name, value in (SAMPLING | OTHER_SAMPLING).items()]
    return [(key, value) for key, value in found if not (value is None and key not in own)]


def write(path: Path, words: Path, is_chain: bool) -> None:
    """A Llama of one block. In a chain, the block adds nothing, and the head gives the next id."""
    reader, rng = gguf.GGUFReader(words), np.random.default_rng(2)
    n, width = len(reader.fields["tokenizer.ggml.tokens"].contents()), 64
    writer = gguf.GGUFWriter(path, "llama")
    if "tokenizer.ggml.bos_token_id" not in reader.fields and "tokenizer.ggml.cls_token_id" in reader.fields:
        # As the converter writes it, and llama.cpp reads it.
        writer.add_bos_token_id(reader.fields["tokenizer.ggml.cls_token_id"].contents())
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_pooling_type(gguf.PoolingType.LAST)
    own = {key: stored for key, stored in Stored(words).keys.items() if key.startswith("tokenizer.")}
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32) * (0 if is_chain else 0.3)
    words = rng.standard_normal((n, width)).astype(np.float32)
    writer.add_tensor("token_embd.weight", words)
    writer.add_tensor("output.weight", np.roll(words, 1, 0) if is_chain else rng.standard_normal((n, width)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name, shape in {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width), "attn_output": (width, width), "ffn_gate": (32, width), "ffn_up": (32, width), "ffn_down": (width, 32)}.items():
        writer.add_tensor(f"blk.0.{name}.weight", draw(*shape))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(width, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    made = Stored(path)
    made.keys |= own
    made.write(path, {})


def judged(path: str) -> tuple[list[list[float]], list[int]]:
    """llama.cpp's vectors of the texts, and the tokens that end an answer."""
    model = gguf_judge.opened(path)
    vocab = llama_cpp.llama_model_get_vocab(model)
    rows = []
    for text in TEXTS:
        tokens, bytes_ = (ctypes.c_int * 512)(), text.encode()
        n = llama_cpp.llama_tokenize(vocab, bytes_, len(bytes_), tokens, 512, True, True)
        rows.append(list(tokens[:n]))
    vectors = [gguf_judge.run_model(model, [row], -1)[0].tolist() for row in rows]
    ends = [i for i in range(llama_cpp.llama_vocab_n_tokens(vocab)) if llama_cpp.llama_vocab_is_eog(vocab, i)]
    templates = [llama_cpp.llama_model_chat_template(model, name) for name in (None, b"other")]
    rendered = [template and template.decode().replace("{{ messages[0].content }}", "x") for template in templates]
    llama_cpp.llama_model_free(model)
    return vectors, ends, rendered


class Program:
    """What the program makes of two files."""

    def __init__(self, program: str, folder: Path):
        self.program, self.folder = program, folder
        (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
        self.said = ""

    def run(self, *arguments) -> bool:
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, env=ONE_THREAD)
        self.said += done.stderr
        return done.returncode == 0

    def vectors(self, path: Path) -> np.ndarray | None:
        out = self.folder / "out.jsonl"
        if not self.run("embed", "--model", path, "--output", out, self.folder / "texts.txt"):
            return None
        return np.array([json.loads(line)["embedding"] for line in out.read_text().splitlines()])

    def prompts(self, path: Path) -> list[str | None]:
        """A question by the chat template, and by the one with another name."""
        asked = [self.program, "generate", "--model", path, "--chat", "--prompt", "x", "--print-prompt"]
        done = [subprocess.run([*map(str, asked), *more], capture_output=True, text=True, env=ONE_THREAD) for more in ([], ["--template", "other"])]
        return [one.stdout.strip("\n") if one.returncode == 0 else None for one in done]

    def ends(self, path: Path, n: int) -> list[int] | None:
        """Starts again behind every end; the last token leads to the first."""
        found, next_id, out = [], 0, self.folder / "out.safetensors"
        while next_id < n:
            safetensors.numpy.save_file({"input_ids": np.array([[(next_id - 1) % n]], np.int64)}, self.folder / "ids.safetensors")
            # One more token than there are, which only no end reaches.
            if not self.run("generate", "--model", path, "--input-ids", self.folder / "ids.safetensors", "--max-new-tokens", n - next_id + 1, "--output", out):
                return None
            last = int(safetensors.numpy.load_file(out)["tokens"][0][-1])
            if last < next_id:
                break
            found.append(last)
            next_id = last + 1
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--words", nargs="+", default=list(WORDS))
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    worker, counts, wrong = gguf_judge.Worker(), collections.Counter(), []
    by_key = collections.defaultdict(lambda: collections.defaultdict(set))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name in arguments.words:
            words = ROOT / "gguf-words" / name / "words.gguf"
            write(folder / "mixed.gguf", words, False)
            write(folder / "chain.gguf", words, True)
            stored = {kind: Stored(folder / f"{kind}.gguf") for kind in ("mixed", "chain")}
            reader = gguf.GGUFReader(words)
            n = len(reader.fields["tokenizer.ggml.tokens"].contents())

            def both(key: str, value) -> tuple:
                change = {key: value} if key else {}
                for kind in stored:
                    stored[kind].write(folder / f"{kind}-changed.gguf", change)
                program = Program(arguments.program, folder)
                ours = program.vectors(folder / "mixed-changed.gguf")
                is_end = any(part in key for part in ("_token_id", "token_type", "tokens", "ggml.pre", "sampling")) or not key
                ends = program.ends(folder / "chain-changed.gguf", n) if ours is not None and is_end else None
                judge = "not asked" if ours is None and key in program.said else worker.ask(judged, str(folder / "mixed-changed.gguf"))
                prompts = program.prompts(folder / "mixed-changed.gguf") if "chat_template" in key and ours is not None else None
                return ours, ends, judge, program.said, prompts

            base = both("", None)
            off = float(np.abs(base[0] - np.array(base[2][0])).max())
            print(f"{name}: {off:.2g} from llama.cpp; ends {base[1]} and {base[2][1]}", flush=True)
            for key, value in changes(reader):
                ours, ends, judge, said, prompts = both(key, value)
                short = repr(value)[:40]
                if ours is None and key in said:
                    verdict = "refused"
                elif isinstance(judge, str):
                    verdict = "llama.cpp refuses; " + ("refused" if ours is None else "opens it")
                elif ours is None and any(name in said for name in ("tokenizer.ggml.", "WordPiece")):
                    verdict = "refused by another name"
                elif ours is None:
                    verdict = f"REFUSED WITHOUT ITS NAME: {said.strip().splitlines()[-1]}"
                else:
                    vectors, of_judge = np.array(judge[0]), judge[1]
                    rows = [text for text, one, other in zip(TEXTS, ours, vectors) if not np.abs(one - other).max() <= max(4 * off, 1e-4)]
                    is_changed = not np.abs(vectors - np.array(base[2][0])).max() <= 1e-4 or of_judge != base[2][1]
                    differ = [f"tokens of {rows}"] * bool(rows) + [f"ends {ends}, llama.cpp's {of_judge}"] * (ends is not None and sorted(set(ends)) != of_judge)
                    verdict = "read" if is_changed else "changes nothing"
                    if prompts is not None and prompts != judge[2]:
                        differ.append(f"prompts {prompts}, llama.cpp's {judge[2]}")
                    verdict = "read" if is_changed or prompts and any(prompts) else verdict
                    if differ and (key, value) in BY_CHOICE:
                        verdict = "as the model, and not as llama.cpp"
                    elif differ:
                        verdict = "named in a note" if key in said else "DIFFERS: " + "; ".join(differ)
                    elif key in said or "general.sampling" in key and "general.sampling" in said:
                        verdict = "named in a note"
                counts[verdict.split(":")[0]] += 1
                by_key[key][verdict.split(":")[0]].add(WORDS[name])
                if verdict.startswith(("DIFFERS", "REFUSED")):
                    wrong.append(f"{WORDS[name]}: {key} = {short}: {verdict}")
                    print(wrong[-1], flush=True)
    lines = ["| key | verdicts |", "|---|---|"]
    for key, verdicts in sorted(by_key.items()):
        lines.append(f"| `{key}` | " + "; ".join(f"{verdict}: {', '.join(sorted(models))}" for verdict, models in sorted(verdicts.items())) + " |")
    counted = f"{len(by_key)} keys, {len(arguments.words)} tokenizers, {sum(counts.values())} changes: {dict(counts)}; {len(wrong)} wrong (llama-cpp-python {llama_cpp.__version__})."
    print(counted)
    if arguments.table:
        arguments.table.write_text("\n".join(["# Verdicts of `gguf_tokenizer_keys.py`", "", counted, "", *lines]) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
