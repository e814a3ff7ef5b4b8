#!/usr/bin/env python3
"""Changes each key of sentence-transformers' files, and compares `candle-blocks embed` and `classify` with the library.

    python weights/sweep/sentences.py target/release/candle-blocks [--only WORD] [--table FILE] [--keep FOLDER]

Builds small random models of several kinds, saves each with sentence-transformers, and for every key of every JSON file
(those that the library knows and did not write included) writes copies with other values. Each copy has one verdict:

    obeyed        both give the same numbers, which the change moved
    no effect     both give the same numbers as before the change
    refused       the program refuses with the name of the key or its value; the library gives numbers
    noted         the program gives other numbers, and a note that names the key
    both refuse   the library fails, and the program refuses
    lenient       the library fails, and the program gives numbers
    SILENT        the numbers differ, and nothing is said: a fault
    UNNAMED       the program refuses without naming key or value: a fault

Exits 1 if there is a fault. `--table` writes the verdicts by file and key in Markdown.
"""

import start  # noqa: F401 - first: it lets the others be found

import argparse
import copy
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from torch import nn

from sweep import sentence_models as models

BOUND = 2e-5
ABSENT = object()
PAIRS = [
    ("Who repaired the clock?", "The tide left three small boats on the sand."),
    ("boats", "Boats! cafe boats, sand. the clock"),
    ("who repaired the clock? who repaired the small clock on the sand?", "the the the the the boats sand"),
    ("sand", "The tide"),
]
TEXTS = [text for pair in PAIRS for text in pair]

# The values of a key, by the end of its path; other keys have those of their type.
TORCH = "torch.nn.modules.activation."
ACTIVATIONS = [TORCH + name for name in ("GELU", "ReLU", "Sigmoid", "SiLU", "Tanh", "Softsign", "ELU", "Hardswish", "Softmax")]
ACTIVATIONS += ["relu", "log1p_relu", "torch.nn.modules.linear.Identity", "torch.nn.LeakyReLU", "my.own.GELU", None, ABSENT]
SIZES = [4, 7, 12, 1000, 1e30, int(1e30), 12.0, None, ABSENT]
VALUES = {
    "max_seq_length": SIZES,
    "do_lower_case": [True, False, None],
    "transformer_task": ["feature-extraction", "sequence-classification", "text-generation", "fill-mask", None, ABSENT],
    "module_output_name": ["token_embeddings", "sentence_embedding", "scores", "causal_logits", "other", None, ABSENT],
    "method_output_name": ["last_hidden_state", "pooler_output", "logits", ["last_hidden_state"], ["hidden_states", -2], None],
    "method": ["forward", "get_text_features", None],
    "modality_config": [{}, ABSENT, None],
    "modality_config.text": [ABSENT],
    "modality_config.message": [
        ABSENT,
        *({"method": "forward", "method_output_name": "last_hidden_state", "format": form} for form in ("flat", "structured", "auto", "other")),
    ],
    "modality_config.image": [{"method": "forward", "method_output_name": "last_hidden_state"}],
    "modality_config.text.format": ["flat"],
    "processing_kwargs": [
        {"text": {"max_length": 6}},
        {"common": {"max_length": 6}},
        {"text": {"max_length": 9}, "common": {"max_length": 6}},
        {"text": {"max_length": None}},
        {"text": {"truncation": False}},
        {"text": {"truncation": True, "max_length": 8}},
        {"text": {"truncation": "only_first", "max_length": 10}},
        {"text": {"truncation": "only_second", "max_length": 10}},
        {"text": {"truncation": "only_first", "max_length": 20}},
        {"text": {"truncation": "only_second", "max_length": 20}},
        {"text": {"truncation": "do_not_truncate", "max_length": 8}},
        {"text": {"truncation": None, "max_length": 8}},
        {"text": {"add_special_tokens": False}},
        {"text": {"add_special_tokens": False, "max_length": 5}},
        {"text": {"padding": "max_length", "max_length": 15}},
        {"text": {"padding": False}},
        {"text": {"pad_to_multiple_of": 8}},
        {"text": {"padding_side": "left"}},
        {"text": {"return_token_type_ids": False}},
        {"text": {"return_token_type_ids": True}},
        {"text": {"return_attention_mask": False}},
        {"text": {"stride": 2}},
        {"text": {"is_split_into_words": True}},
        {"text": {"logits_to_keep": 0}},
        {"text": {"verbose": False}},
        {"common": {"padding": True}},
        {"audio": {"sampling_rate": 16000}},
        {"image": {"size": 3}},
        {"video": {"fps": 3}},
        {"text": {"return_overflowing_tokens": False}},
        {"chat_template": {"add_generation_prompt": True}},
        {"chat_template": {"max_length": 9}},
        {"chat_template": {"max_length": 9, "restore_suffix": False}},
        {"chat_template": {"truncation": False}},
        {"chat_template": {"mood": "calm"}},
        {"chat_template": {"continue_final_message": True}},
        {"chat_template": {"tools": None}},
        {"other": {"max_length": 6}},
        {},
        None,
    ],
    "unpad_inputs": [True, False, None],
    "query_length": [5, None],
    "document_length": [5],
    "query_expansion": [{"strategy": "fixed", "length": 8}, None],
    "tokenizer_name_or_path": [None, "elsewhere"],
    "cache_dir": [None],
    **{
        key: [{"attn_implementation": "eager"}, {"torch_dtype": "float32"}, {"trust_remote_code": True}, {"revision": "main"}, {}]
        for key in ("model_args", "model_kwargs")
    },
    **{
        key: [
            {"model_max_length": 6},
            {"model_max_length": None},
            {"padding_side": "left"},
            {"truncation_side": "left", "model_max_length": 6},
            {"use_fast": True},
            {"add_prefix_space": True},
            {"do_lower_case": False},
        ]
        for key in ("tokenizer_args", "processor_kwargs")
    },
    **{
        key: [
            {"output_hidden_states": True},
            {"use_cache": False},
            {"is_causal": False},
            {"hidden_act": "relu"},
            {"num_hidden_layers": 1},
            {"trust_remote_code": True},
        ]
        for key in ("config_args", "config_kwargs")
    },
    "prompts": [
        {"query": "tide: ", "document": ""},
        {"query": "tide sand boats clock small three left who repaired the: "},
        {"other": "sand "},
        {"query": None},
        {},
        ABSENT,
    ],
    "default_prompt_name": ["query", "document", "none", "", None, ABSENT],
    "similarity_fn_name": ["dot", "euclidean", "other", None],
    "truncate_dim": [1, 5, 1000, 0, None],
    "max_active_dims": [1, 5, 1000, 0, None],
    "pooling_strategy": ["max", "sum", "mean", None, ABSENT],
    "chunk_size": [1, 3, None],
    "model_type": ["SentenceTransformer", "CrossEncoder", "SparseEncoder", "MultiVectorEncoder", None, ABSENT],
    "activation_fn": ACTIVATIONS,
    "activation_function": ACTIVATIONS,
    "keep_in_fp32_modules": [[], None],
    "__version__": [{"sentence_transformers": "99.0"}, {}],
    "pooling_mode": ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["mean", "cls"], ["lasttoken"], [], "median", None, ABSENT],
    "pooling_mode_cls_token": [True, False],
    "pooling_mode_mean_tokens": [True],
    "pooling_mode_lasttoken": [True],
    "pooling_mode_other": [True],
    "word_embedding_dimension": [24, 99],
    "embedding_dimension": [24, 99, None],
    "include_prompt": [True, False, None, 0],
    "bias": [True, False, None],
    "use_residual": [True, False],
    "module_input_name": ["sentence_embedding", "token_embeddings", "scores", "other", None, ABSENT],
    "dropout": [0.0, 0.9],
    "eps": [1e-3],
    "true_token_id": [3, 9, 10_000, None],
    "false_token_id": [3, 9, None, ABSENT],
    "problem_type": ["regression", "single_label_classification", "multi_label_classification", "other", None],
    "function_to_apply": ["none", "softmax", "sigmoid"],
    "sentence_transformers": [{"activation_fn": name} for name in ACTIVATIONS if name is not ABSENT] + [{}, {"version": "6.2.0"}],
    "sbert_ce_default_activation_function": ACTIVATIONS,
    "type": ["sentence_transformers.models.{}", "my.own.{}", "sentence_transformers.models.Dropout", "sentence_transformers.models.LSTM"]
    + ["sentence_transformers.models.WeightedLayerPooling", "sentence_transformers.models.StaticEmbedding"]
    + ["sentence_transformers.models.Router", "sentence_transformers.models.Other"],
    "kwargs": [["task"], []],
    "idx": [7],
    "name": ["other"],
    "unheard_of": [1],
}
# Keys that a file may have, beside those that the library wrote.
KNOWN = {
    "modules.json": ["{}.type", "{}.idx", "{}.name", "{}.kwargs", "{}.unheard_of"],
    "config_sentence_transformers.json": [
        "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "max_active_dims", "model_type",
        "activation_fn", "keep_in_fp32_modules", "requirements", "unheard_of",
    ],
    "sentence_bert_config.json": [
        "max_seq_length", "do_lower_case", "transformer_task", "modality_config", "modality_config.text", "modality_config.message",
        "modality_config.image", "modality_config.text.method", "modality_config.text.method_output_name",
        "modality_config.message.method", "modality_config.message.method_output_name", "modality_config.message.format",
        "modality_config.text.format", "module_output_name",
        "processing_kwargs", "unpad_inputs", "query_length", "document_length", "query_expansion", "tokenizer_name_or_path",
        "model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs", "cache_dir", "unheard_of",
    ],
    "Pooling": [
        "pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension", "pooling_mode_cls_token",
        "pooling_mode_mean_tokens", "pooling_mode_lasttoken", "pooling_mode_other", "unheard_of",
    ],
    "SpladePooling": ["pooling_strategy", "activation_function", "embedding_dimension", "word_embedding_dimension", "chunk_size", "unheard_of"],
    "Dense": [
        "in_features", "out_features", "bias", "activation_function", "module_input_name", "module_output_name", "use_residual",
        "unheard_of",
    ],
    "LayerNorm": ["dimension", "eps", "unheard_of"],
    "Normalize": ["module_input_name", "module_output_name", "unheard_of"],
    "Dropout": ["dropout", "unheard_of"],
    "LogitScore": ["true_token_id", "false_token_id", "module_input_name", "unheard_of"],
    "config.json": ["problem_type", "function_to_apply", "sentence_transformers", "sbert_ce_default_activation_function"],
}
OTHER_VALUES = {bool: [True, False, None], int: [3, None], float: [0.5, None], str: ["other", None], list: [[], None], dict: [{}, None]}


def files_of(folder: Path):
    """The files of a model, each with the name of the list of its keys."""
    yield folder / "modules.json", "modules.json"
    yield folder / "config_sentence_transformers.json", "config_sentence_transformers.json"
    yield folder / "sentence_bert_config.json", "sentence_bert_config.json"
    for module in sorted(folder.glob("*_*/")):
        if (module / "config.json").exists():
            yield module / "config.json", module.name.partition("_")[2]
    if json.loads((folder / "config_sentence_transformers.json").read_text()).get("model_type") == "CrossEncoder":
        yield folder / "config.json", "config.json"


def at(value, path: list):
    """The value at a path of keys, or `ABSENT`."""
    for key in path:
        if isinstance(value, list):
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return ABSENT
    return value


def changed(value, path: list, to):
    """A copy with another value at a path of keys, or `None` if there is no place for it."""
    value = copy.deepcopy(value)
    parent = at(value, path[:-1])
    if parent is ABSENT or not isinstance(parent, (dict, list)):
        return None
    if to is ABSENT:
        if path[-1] not in parent:
            return None
        del parent[path[-1]]
    else:
        parent[path[-1]] = to
    return value


def changes(contents, kind: str):
    """The keys of a file with the values to try."""
    paths = []
    for name in KNOWN.get(kind, []):
        if "{}" in name:
            paths += [name.format(i) for i in range(len(contents))]
        else:
            paths.append(name)
    if kind != "config.json" and isinstance(contents, dict):
        paths += [key for key in contents if key not in paths]
    for name in paths:
        path = name.split(".")
        old = at(contents, path)
        values = VALUES.get(name, VALUES.get(path[-1]))
        if values is None:
            values = OTHER_VALUES.get(type(old), [1, None])
        for value in values:
            if isinstance(value, str) and "{}" in value:
                value = value.format(str(old).rsplit(".", 1)[-1])
            if value is not old and (new := changed(contents, path, value)) is not None and new != contents:
                yield name, value, new


def of_library(folder: Path, judge: str):
    """The numbers of sentence-transformers, or its error."""
    import sentence_transformers

    try:
        settings = folder / "config_sentence_transformers.json"
        if judge == "SentenceTransformer" and json.loads(settings.read_text()).get("model_type") == "SparseEncoder":
            judge = "SparseEncoder"  # the program goes by the file, the library by its caller
        cls = getattr(sentence_transformers, judge)
        if judge == "CrossEncoder":
            scores = cls(str(folder), device="cpu", local_files_only=True).predict(PAIRS, batch_size=1)
            return np.asarray(scores, np.float64).reshape(len(PAIRS), -1)
        model = cls(str(folder), device="cpu", local_files_only=True)
        options = {"convert_to_tensor": True, "convert_to_sparse_tensor": False} if judge == "SparseEncoder" else {}
        found = np.asarray(model.encode(TEXTS, batch_size=1, **options), np.float64)
        if found.ndim != 2:
            return f"vectors of shape {found.shape}"
        return found
    except Exception as error:  # the library's own errors have many types
        return f"{type(error).__name__}: {error}"


def of_program(binary: str, folder: Path, judge: str):
    """The numbers of the program, or its error; and its notes."""
    is_scorer = judge == "CrossEncoder"
    with tempfile.TemporaryDirectory() as scratch:
        texts, out = Path(scratch, "texts.txt"), Path(scratch, "out.safetensors")
        lines = ["\t".join(pair) for pair in PAIRS] if is_scorer else TEXTS
        texts.write_text("\n".join(lines) + "\n")
        command = [binary, "classify" if is_scorer else "embed", "--model", str(folder), str(texts), "--output", str(out)]
        done = subprocess.run(command + ["--pairs"] * is_scorer, capture_output=True, text=True, timeout=60)
        notes = "\n".join(line for line in done.stderr.splitlines() if line.startswith("note:"))
        if done.returncode:
            return done.stderr.strip(), notes
        return load_file(out)["scores" if is_scorer else "embeddings"].astype(np.float64), notes


def is_equal(a, b) -> bool:
    if a.shape != b.shape or not np.isfinite(a).all() or not np.isfinite(b).all():
        return a.shape == b.shape and bool(np.array_equal(np.isfinite(a), np.isfinite(b)))
    return float(np.abs(a - b).max()) <= BOUND * max(float(np.abs(b).max()), 1e-3)


def names(message: str, key: str, value) -> bool:
    """Whether a message names the key, a key below it, or the value."""
    words = [key.rsplit(".", 1)[-1]]
    if isinstance(value, dict):
        words += [inner for outer in value.values() if isinstance(outer, dict) for inner in outer] + list(value)
    if isinstance(value, str):
        words.append(value)
    return any(f'"{word}"' in message or f".{word}" in message or f" {word} " in message for word in words)


def verdict(binary, folder, judge, before, key, value):
    library = of_library(folder, judge)
    program, notes = of_program(binary, folder, judge)
    if isinstance(program, str):
        if isinstance(library, str):
            return "both refuse", program
        return ("refused" if names(program, key, value) else "UNNAMED"), program
    if isinstance(library, str):
        return "lenient", library
    if is_equal(program, library):
        return ("no effect" if is_equal(library, before) else "obeyed"), ""
    if names(notes, key, value):
        return "noted", notes
    return "SILENT", f"shapes {program.shape} {library.shape}" if program.shape != library.shape else f"{np.abs(program - library).max():.2e}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--only", default="", help="models, files or keys whose joined name has this")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    counts, table, n_faults = defaultdict(int), defaultdict(lambda: defaultdict(list)), 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, judge, build in models.ALL:
            folder = Path(scratch, name)
            build(folder)
            before = of_library(folder, judge)
            found, _ = of_program(arguments.binary, folder, judge)
            if isinstance(before, str) or isinstance(found, str) or not is_equal(found, before):
                what = before if isinstance(before, str) else found if isinstance(found, str) else np.abs(found - before).max()
                print(f"SILENT {name}, unchanged: {what}")
                n_faults += 1
                continue
            for path, kind in files_of(folder):
                contents = json.loads(path.read_text())
                original = path.read_text()
                for key, value, new in changes(contents, kind):
                    shown = "absent" if value is ABSENT else json.dumps(value)
                    line = f"{name} {path.relative_to(folder)} {key} = {shown}"
                    if arguments.only not in line:
                        continue
                    path.write_text(json.dumps(new))
                    said, why = verdict(arguments.binary, folder, judge, before, key, value)
                    counts[said] += 1
                    table[kind if kind.endswith(".json") else f"{kind}/config.json"][key.lstrip("0123456789.")].append(said)
                    is_fault = said in ("SILENT", "UNNAMED")
                    n_faults += is_fault
                    if is_fault or arguments.verbose:
                        print(f"{said:12} {line}: {why}", flush=True)
                    if is_fault and arguments.keep:
                        shutil.copytree(folder, arguments.keep / f"{n_faults}-{name}", dirs_exist_ok=True)
                path.write_text(original)
            print(f"{name}: done", flush=True)
    print({**counts, "all": sum(counts.values()), "keys": sum(len(keys) for keys in table.values()), "faults": n_faults})
    if arguments.table:
        arguments.table.write_text(written(table))
    sys.exit(n_faults > 0)


def written(table) -> str:
    lines = ["| file | key | verdicts |", "|---|---|---|"]
    for file, keys in sorted(table.items()):
        for key, all_said in sorted(keys.items()):
            counted = [f"{all_said.count(said)} {said}" for said in sorted(set(all_said))]
            lines.append(f"| {file} | `{key}` | {', '.join(counted)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
