"""Cuts texts with llama.cpp by every name that it knows of `tokenizer.ggml.pre`.

    cd weights; python -m sweep.gguf_pre_tokenizers OUT.json [--texts N]  # with llama-cpp-python; then
    CANDLE_BLOCKS_CUTS=OUT.json cargo test --release --workspace --test text every_name_of_a_pre_tokenizer -- --nocapture

The vocabulary has all bytes, and every pair of those in the texts as a merge, in a mixed order: wherever a name cuts, a pair is
not merged, and the tokens are others. Some longer tokens have no merge, so that names differ which look words up first. A text's
tokens are written as their lengths in bytes; 0 is the token that begins a text. A text for which llama.cpp stops the process
has none. Names whose tokenizer.json composes characters (NFC) are given composed texts, because llama.cpp does not do it.
`gguf-words/cuts.json` is of 36 texts.
"""

import argparse
import collections
import json
import multiprocessing
import random
import re
import tempfile
import unicodedata
from pathlib import Path

import gguf
import llama_cpp
from gguf import TokenType as T

# Letters of several kinds and scripts, marks, digits, spaces, punctuation, symbols.
CHARACTERS = [*"abstLLSZ", "é", "É", "ǅ", "ʰ", "ſ", "д", "Д", "中", "の", "한", "ท", "\u0e4c", "\u0301", *"1234", "٣", "²", *"    ", "\n", "\n", "\r",
              "\t", "\u00a0", "\u3000", *"'''..-_/$+^`|~(\"#<=", "“", "…", "！", "€", "😀", "\u200d"]
# GPT-2's signs for bytes: those that are printed stand for themselves, the others are counted from U+0100 on.
PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTED]
SIGNS = {byte: chr(256 + OTHERS.index(byte)) if byte in OTHERS else chr(byte) for byte in range(256)}
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def texts(n: int) -> list[str]:
    """Every third is ASCII."""
    rng = random.Random(40)
    ascii = [character for character in CHARACTERS if character.isascii()]
    word = lambda i: rng.choice(CHARACTERS if i % 3 else ascii) * rng.choice([1, 1, 1, 1, 2, 3, 7])
    return ["".join(word(i) for _ in range(rng.randrange(3, 11))) for i in range(n)]


# As in crates/tokenizers/src/gguf/pre_tokenizers.rs.
COMPOSED = {"qwen2", "f2llmv2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "qwen35", "mpt", "olmo", "modern-bert", "command-r"}
IN_CHARACTERS = {"gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"}
WHOLE = ["abst", "LLS", " at", "中の", "дД", "123", "  \n", "sts", "...", "'s"]


def units(texts: list[str], is_spelled_in_bytes: bool) -> list[str]:
    """Of what pairs are made."""
    return sorted(set(spelled("".join(texts + [unicodedata.normalize("NFC", text) for text in texts]), is_spelled_in_bytes)) - {"\n"})


def spelled(text: str, is_spelled_in_bytes: bool) -> str:
    return "".join(SIGNS[byte] for byte in text.encode()) if is_spelled_in_bytes else text.replace(" ", "▁")


def vocabulary(units: list[str], is_spelled_in_bytes: bool) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types, and merges. The test makes the same."""
    n = len(units)
    order = sorted(range(n * n), key=lambda i: i * 2654435761 % 2**32)
    pairs = [(units[i // n], units[i % n]) for i in order]
    tokens = ["<s>", "</s>", "<sep>"]
    tokens += SIGNS.values() if is_spelled_in_bytes else [*(f"<0x{i:02X}>" for i in range(256)), *("\n" * i for i in range(1, 32)), *units]
    types = [T.CONTROL] * 3 + [T.NORMAL if is_spelled_in_bytes else T.BYTE] * 256
    more = dict.fromkeys([*(a + b for a, b in pairs), *(spelled(text, is_spelled_in_bytes) for text in WHOLE)])
    known = set(tokens)
    tokens += [token for token in more if token not in known]
    return tokens, types + [T.NORMAL] * (len(tokens) - len(types)), [f"{a} {b}" for a, b in pairs]


def write(path: Path, words: tuple, model: str, name: str) -> None:
    tokens, types, merges = words
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for i, special in enumerate(["bos", "eos", "seperator"]):
        writer.add_uint32(f"tokenizer.ggml.{special}_token_id", i)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def candidates() -> list[str]:
    """Texts of the library that could be names, and those of this repository's table, for short ones are not among these."""
    table = (Path(__file__).parents[2] / "crates/tokenizers/src/gguf/pre_tokenizers.rs").read_text(encoding="utf-8")
    library = next((Path(llama_cpp.__file__).parent / "lib").glob("libllama.so*")).read_bytes()
    found = re.findall(rb"(?<=\0)[a-z][a-z0-9._-]{2,24}(?=\0)", library)
    return sorted({text.decode() for text in found} | set(re.findall(r'"([a-z][a-z0-9._-]+)"', table)))


def tokenized(path: Path, texts: list[str]) -> list[list[int]] | str:
    """Ids, or what becomes of a name; in a process of its own, which an assertion of llama.cpp's ends."""
    receive, send = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        try:
            model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
            send.send([model.tokenize(text.encode(), add_bos=True, special=True) for text in texts])
        except (ValueError, RuntimeError):
            send.send("unknown")

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        return "ended"
    finally:
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=int, default=36)
    parser.add_argument("--names", nargs="+", help="these instead of all that the library could know, which take minutes")
    arguments = parser.parse_args()
    all_texts = texts(arguments.texts)
    all_units = {of: units(all_texts, of == "bytes") for of in ("bytes", "characters")}
    words = {of: vocabulary(all_units[of], of == "bytes") for of in all_units}
    groups = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.gguf"
        for name in arguments.names or candidates():
            of = "characters" if name in IN_CHARACTERS else "bytes"
            write(path, words[of], "gpt2", name)
            given = [unicodedata.normalize("NFC", text) if name in COMPOSED else text for text in all_texts]
            # Line breaks beside each other stop the process where words are spelled in characters, but for Gemma's.
            given = ["" if name == "sarvam-moe" and "\n\n" in text else text for text in given]
            found = tokenized(path, given)
            if found == "ended":
                print(f"llama.cpp stops the process at {name}")
            if isinstance(found, str):
                continue
            tokens, types, _ = words[of]
            length = lambda id: 0 if id < 3 else 1 if types[id] == T.BYTE else len(tokens[id]) if of == "bytes" else len(tokens[id].replace("▁", " ").encode())
            rows = tuple("".join(DIGITS[length(id)] for id in row) if text else "" for row, text in zip(found, given))
            groups[of, rows].append(name)
    by_name = [{"names": names, "words": of, "lengths": rows} for (of, rows), names in groups.items()]
    found = {"llama_cpp_python": llama_cpp.__version__, "texts": all_texts, "units": all_units, "whole": WHOLE, "of": by_name}
    arguments.out.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{sum(map(len, groups.values()))} names, {len(groups)} ways of {len(all_texts)} texts, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
