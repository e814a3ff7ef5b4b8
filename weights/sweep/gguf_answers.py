"""Asks a GGUF file questions through the program and through llama.cpp, and judges both by float64.

    cd weights; pip install llama-cpp-python
    python -m sweep.gguf_answers PROGRAM FILE.gguf [--tokens N] [--table FILE]   # minutes; of SmolLM2-135M five

The likeliest tokens of float64 are those that transformers makes of the file's numbers. Five others answer too: the program with
numbers (f32) and with the file's codes (as-stored), and llama.cpp with the file, and with its numbers as an F32 file, whose
cache of keys and values has f16 (its default) or f32. Where one of them says another token than float64, both tokens' logits at
that step tell whether that is a tie. How far all logits are from float64's is measured on float64's own answer.

Exits with 1 if the program's f32 is more than four times as far from float64 as llama.cpp with F32 numbers and an f32 cache, if it
says another token where float64's two differ by more than that, or if it does not end where float64's answer does.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import safetensors.numpy
import torch
import transformers

from fixtures.double import in_double

QUESTIONS = [
    "What is the capital of Italy?", "What is 15 minus 8?", "Name two animals that live in the sea.", "Who painted the Mona Lisa?",
    "Why is the sky blue?", "Write a short poem about rain.", "How do I boil an egg?", "Say 'thank you' in Spanish.",
    "What is larger, the moon or the sun?", "Give me a name for a cat.", "Explain gravity to a child.", "List the days of the week.",
    "Quelle est la capitale de l'Espagne ?", "Write `hello world` in Python.", "I have 3 apples and eat 2. How many are left?",
    "Tell me a joke about a clock.", "What does H2O mean?", "Is a tomato a fruit?", "Translate 'house' into German.", "Describe a tree in one sentence.",
]
NAMES = ["ours, f32", "ours, as-stored", "llama.cpp, F32, cache f32", "llama.cpp, F32, cache f16", "llama.cpp, the file"]


def as_numbers(source: Path, path: Path) -> None:
    """The same file with F32 tensors."""
    reader = gguf.GGUFReader(source)
    field = reader.fields["general.architecture"]
    writer = gguf.GGUFWriter(path, field.contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind, value = field.types[0], field.contents()
        writer.add_array(key, value) if kind == gguf.GGUFValueType.ARRAY else writer.add_key_value(key, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


class Peer:
    """llama.cpp with a file."""

    def __init__(self, path: Path, cache: int | None, n_tokens: int):
        self.model = llama_cpp.Llama(
            str(path), n_ctx=n_tokens, n_threads=1, logits_all=True, verbose=False, type_k=cache, type_v=cache, flash_attn=False
        )

    def prompt(self, text: str) -> list[int]:
        return self.model.tokenize(text.encode(), add_bos=False, special=True)

    def ends(self, token: int) -> bool:
        return llama_cpp.llama_vocab_is_eog(self.model._model.vocab, token)

    def answer(self, prompt: list[int], n: int) -> list[int]:
        self.model.reset()
        self.model.eval(prompt)
        made = []
        while True:
            made.append(int(self.model.scores[self.model.n_tokens - 1].argmax()))
            if len(made) == n or self.ends(made[-1]):
                return made
            self.model.eval(made[-1:])

    def logits(self, ids: list[int]) -> np.ndarray:
        self.model.reset()
        self.model.eval(ids)
        return self.model.scores[: len(ids)].copy()


class Program:
    """This program with a file."""

    def __init__(self, program: str, path: Path, precision: str, folder: Path):
        self.program, self.path, self.precision, self.folder = program, path, precision, folder

    def run(self, command: str, *arguments: str) -> None:
        command = [self.program, command, "--model", self.path, "--precision", self.precision, *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def answer(self, question: str, n: int) -> list[int]:
        out = self.folder / "tokens.safetensors"
        self.run("generate", "--chat", "--prompt", question, "--max-new-tokens", str(n), "--output", out)
        return safetensors.numpy.load_file(out)["tokens"][0].tolist()

    def logits(self, ids: list[int]) -> np.ndarray:
        given, out = self.folder / "ids.safetensors", self.folder / "logits.safetensors"
        safetensors.numpy.save_file({"input_ids": np.array([ids])}, given)
        self.run("run", "--input", given, "--output", out)
        return safetensors.numpy.load_file(out)["logits"][0]


def exact(model, ids: list[int]) -> np.ndarray:
    with torch.no_grad(), in_double():
        return model(torch.tensor([ids])).logits[0].numpy()


def exact_answer(model, prompt: list[int], n: int, ends) -> list[int]:
    """The likeliest tokens in float64."""
    made, cache, given = [], None, prompt
    while len(made) < n and not (made and ends(made[-1])):
        with torch.no_grad(), in_double():
            out = model(torch.tensor([given]), cache=cache, use_cache=True)
        cache = out.past_key_values
        made.append(int(out.logits[0, -1].argmax()))
        given = made[-1:]
    return made


def parting(one: list[int], other: list[int]) -> int | None:
    """Where two answers part; of a shorter one that is the beginning of the other, behind it."""
    for i, (a, b) in enumerate(zip(one, other)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    n, lines, failed = arguments.tokens, [], False
    torch.set_num_threads(1)  # as llama.cpp, whose threads do not share a core well
    worst, squares, equal = np.zeros(len(NAMES)), np.zeros(len(NAMES)), np.zeros(len(NAMES), int)
    among = {"both f32": 0, "the file": 0}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        numbers = folder / "numbers.gguf"
        as_numbers(arguments.file, numbers)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            arguments.file.parent, gguf_file=arguments.file.name, dtype=torch.float32, attn_implementation="eager"
        ).eval().double()
        ours = [Program(arguments.program, arguments.file, precision, folder) for precision in ("f32", "as-stored")]
        F32 = llama_cpp.GGML_TYPE_F32
        peers = [Peer(numbers, F32, 512), Peer(numbers, None, 512), Peer(arguments.file, None, 512)]
        for question in QUESTIONS[: arguments.questions]:
            text = subprocess.run(
                [arguments.program, "generate", "--model", arguments.file, "--chat", "--prompt", question, "--print-prompt"],
                check=True, capture_output=True, text=True,
            ).stdout
            prompt = peers[0].prompt(text)
            truth = exact_answer(model, prompt, n, peers[0].ends)
            answers = [one.answer(question, n) for one in ours] + [peer.answer(prompt, n) for peer in peers]
            ids = prompt + truth[:-1]
            true = exact(model, ids)[len(prompt) - 1 :]
            all_logits = [one.logits(ids)[len(prompt) - 1 :] for one in [*ours, *peers]]
            off = [np.abs(logits - true) for logits in all_logits]
            worst = np.maximum(worst, [o.max() for o in off])
            squares += [(o**2).mean() for o in off]
            said = []
            for name, answer, logits in zip(NAMES, answers, all_logits):
                at = parting(truth, answer)
                equal[NAMES.index(name)] += at is None
                if at is None:
                    continue
                if at == len(truth) or at == len(answer):
                    said.append(f"{name}: goes on, or stops, after {at}")
                    failed |= name == NAMES[0]
                    continue
                a, b = truth[at], answer[at]
                margin, own = true[at, a] - true[at, b], logits[at, a] - logits[at, b]
                said.append(f"{name}: after {at}, by {margin:+.4f} in float64 and {own:+.4f} of its own, logits of {true[at, a]:.1f}")
                # Not by the program's own error, which is never less than half the margin.
                failed |= name == NAMES[0] and margin > 4 * worst[2]
            among["both f32"] += answers[0] == answers[2]
            among["the file"] += answers[1] == answers[4]
            lines.append(f"| {question} | {len(truth)} | {'; '.join(said) or 'all the same'} |")
            print(lines[-1], flush=True)
    n_asked = len(lines)
    failed |= not worst[0] <= 4 * worst[2]  # also where it is not a number
    report = ["| question | tokens | those that part from float64: after how many, and by what |", "|---|---|---|", *lines, ""]
    report += ["| | same answers as float64 | logits off, root mean square | at most |", "|---|---|---|---|"]
    for i, name in enumerate(NAMES):
        report.append(f"| {name} | {equal[i]} of {n_asked} | {np.sqrt(squares[i] / n_asked):.2e} | {worst[i]:.2e} |")
    report.append(f"\nours and llama.cpp alike: {among['both f32']} of {n_asked} with numbers, {among['the file']} with the file's codes")
    print("\n".join(report))
    if arguments.table:
        arguments.table.write_text("\n".join(report) + "\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
