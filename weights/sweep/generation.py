"""Does each key of generation_config.json change our tokens as it changes transformers'?

    python weights/sweep/generation.py PROGRAM [--random N] [--seed S] [--out FILE] [--keys PATTERN] [--models PATTERN]

Makes small random models with tokenizers: two decoders, three mixtures of experts and two encoder-decoders. For each value of each
key of transformers' `GenerationConfig`, and for N random sets of keys, runs `model.generate(**inputs)` and `PROGRAM generate` on the same unequal
prompts. One line for each model, key and value, with one of these verdicts:

    same            both generate the same (with `changed`: other tokens than without the key)
    refused         the program refuses, and names the key
    noted           the tokens differ, and a note names the key
    fails           transformers refuses (with what the program does)
    unordered       the tokens differ, and transformers' own beams have equal scores, such as those of two tokens that are forced,
                    or 1e9 and more, beside which f32 loses the -1e9 that marks ended ones: the order in which `torch.topk`
                    lists equal numbers decides
    rounding        the tokens differ from transformers' in f32, and are transformers' in float64
    SILENT          the tokens differ: a fault
    UNNAMED         the program refuses without the key's name: a fault
"""

import start  # first: it lets the others be found

import argparse
import collections
import fnmatch
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig

from fixtures import tensor_file

TOPK = torch.topk
VOCAB, LENGTHS = 300, (9, 5, 2)
BOS, PAD, EOS = 0, 1, 2
BEAMS = {"num_beams": 3}
DRAWN = {"do_sample": True}

# The values of each key, each with what else it needs to have an effect.
VALUES = {
    "max_length": [7, 14, 30, 2], "max_new_tokens": [1, 6, 25], "min_length": [5, 15], "min_new_tokens": [0, 4, 12],
    "early_stopping": [(v, BEAMS) for v in (True, False, "never")] + [True, "soon"],
    "max_time": [1000.0, 0.0], "stop_strings": ["e", ["th", "ou"], [" the", "zzz"], "and "], "do_sample": [False, True],
    "num_beams": [1, 2, 5], "use_mtp": [False], "use_cache": [True, False], "cache_implementation": ["dynamic", "quantized"],
    "cache_config": [None], "max_cache_len": [None],
    "temperature": [0.3, (0.3, DRAWN)], "top_k": [3, (3, DRAWN)], "top_p": [0.5, (0.5, DRAWN)], "min_p": [0.3, (0.3, DRAWN)],
    "top_h": [0.4, (0.4, DRAWN)], "typical_p": [0.4, (0.4, DRAWN)], "epsilon_cutoff": [0.1, (0.1, DRAWN)], "eta_cutoff": [0.1, (0.1, DRAWN)],
    "repetition_penalty": [1.0, 1.3, 3.0, 0.5, (1.4, BEAMS)], "encoder_repetition_penalty": [1.5, 4.0, 0.4, (2.0, BEAMS)],
    "length_penalty": [(0.0, BEAMS), (2.0, BEAMS), (-1.0, BEAMS), 3.0], "no_repeat_ngram_size": [0, 1, 2, 3, (2, BEAMS)],
    "encoder_no_repeat_ngram_size": [0, 1, 2, (1, BEAMS)],
    "bad_words_ids": [[[5]], [[EOS], [7, 9]], "likely", ("likely", BEAMS)], "sequence_bias": ["likely", ("likely", BEAMS), [[[9], 30.0], [[9, 8], 50.0]]],
    "renormalize_logits": [True, (True, {**BEAMS, "no_repeat_ngram_size": 1})],
    "forced_bos_token_id": [11, (11, BEAMS)], "forced_eos_token_id": [13, [17, 14], (13, BEAMS)],
    "remove_invalid_values": [True, (True, {"suppress_tokens": [5, 6]})],
    "exponential_decay_length_penalty": [[1, 1.5], [4, 3.0], ([1, 1.2], BEAMS)], "suppress_tokens": [[5, 6, -1], "likely", ("likely", BEAMS)],
    "begin_suppress_tokens": ["likely", ("likely", {"forced_bos_token_id": 11})], "token_healing": [False, True], "guidance_scale": [1.0, 1.7],
    "watermarking_config": [{"greenlist_ratio": 0.3, "bias": 4.0}], "num_return_sequences": [1, 2, (2, BEAMS), (3, BEAMS), (2, DRAWN)],
    "output_attentions": [True], "output_hidden_states": [True], "output_scores": [True], "output_logits": [True], "return_dict_in_generate": [True],
    "pad_token_id": [None, 0, 7, (0, BEAMS)], "bos_token_id": [None, 5], "eos_token_id": [None, 5, [2, 9, 11], ([2, 9, 11], BEAMS), -1], "decoder_start_token_id": [4, None],
    "is_assistant": [False, True], "num_assistant_tokens": [3], "num_assistant_tokens_schedule": ["heuristic"], "assistant_confidence_threshold": [0.9],
    "prompt_lookup_num_tokens": [2], "max_matching_ngram_size": [3], "assistant_early_exit": [None], "assistant_lookbehind": [4], "target_lookbehind": [4],
    "assistant_ensemble_weight": [0.5], "speculation_type": [None], "compile_config": [None], "disable_compile": [True], "continuous_batching_config": [None],
    "low_memory": [False, True, (True, BEAMS)], "penalty_alpha": [0.0, 0.6, (0.6, {"top_k": 4})], "dola_layers": ["low"],
    "diversity_penalty": [0.5, (0.5, BEAMS)], "num_beam_groups": [1, 2, (2, {"num_beams": 4})], "constraints": [[[5]]], "force_words_ids": [[[5]], ([[5]], BEAMS)],
    "prefill_chunk_size": [None, 4], "transformers_version": ["4.0.0"],
    # Not transformers' own.
    "an_unknown_key": [True], "forced_decoder_ids": [[[1, 5]]],
}
# Of which random sets are made.
RANDOM = (
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "num_beams", "repetition_penalty", "length_penalty",
    "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "sequence_bias", "forced_bos_token_id",
    "forced_eos_token_id", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "renormalize_logits", "remove_invalid_values",
    "stop_strings", "eos_token_id", "pad_token_id",
)


@dataclass
class Subject:
    """A model of transformers, its folder and its prompts."""

    name: str
    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerFast
    folder: Path
    inputs: dict[str, torch.Tensor]
    special: dict[str, int]
    # Whether the last search could tell its sequences apart.
    is_ordered: bool = True

    def watched_topk(self, scores: torch.Tensor, k: int, **others):
        """`torch.topk`, and a look at the scores of a search, which names no dimension."""
        if others:
            return TOPK(scores, k, **others)
        best = TOPK(scores, min(k + 1, scores.shape[-1]))[0]
        is_tied = (best[..., 1:] == best[..., :-1]) & (best[..., 1:] > -1e8)
        self.is_ordered &= bool((best < 1e9).all()) and not bool(is_tied.any())
        return TOPK(scores, k)

    def judged(self, config: dict) -> list[list[int]]:
        """The new tokens by a configuration that is the checkpoint's."""
        self.model.generation_config = GenerationConfig(**config)
        texts = {"tokenizer": self.tokenizer} if config.get("stop_strings") else {}
        torch.manual_seed(0)
        with torch.no_grad(), mock.patch("torch.topk", self.watched_topk):
            self.is_ordered = True
            made = self.model.generate(**self.inputs, **texts)
        made = made if isinstance(made, torch.Tensor) else made.sequences
        given = self.inputs.get("decoder_input_ids", self.inputs["input_ids"])
        start = 1 if self.model.config.is_encoder_decoder else given.shape[1]
        return made[:, start:].tolist()

    def exactly(self, config: dict) -> list[list[int]]:
        """As `judged`, in float64, for which PyTorch has no product of grouped experts."""
        self.model.set_experts_implementation("eager")
        self.model.double()
        made = self.judged(config)
        self.model.float()
        return made

    def ours(self, program: str, config: dict) -> tuple[list[list[int]] | None, str]:
        """The program's new tokens, if it makes some, and what it says."""
        (self.folder / "generation_config.json").write_text(json.dumps(config))
        out = self.folder / "out.safetensors"
        out.unlink(missing_ok=True)
        command = [program, "generate", "--model", self.folder, "--input-ids", self.folder / "in.safetensors", "--output", out]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return (tensor_file.read(out)["tokens"].tolist() if ran.returncode == 0 else None), ran.stderr


def subjects(scratch: Path, seed: int, names: str = "*") -> list[Subject]:
    """Small random models with tokenizers of three kinds."""
    sizes = {"vocab_size": VOCAB, "bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS, "initializer_range": 0.4, "init_std": 0.4}
    wide = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    bart = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 64}
    bart.update({"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": EOS, "forced_eos_token_id": None})
    t5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": PAD, "initializer_factor": 3.0}
    experts = {**wide, "max_position_embeddings": 128, "num_experts_per_tok": 2}
    latent = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "head_dim": 4}
    grouped = {"moe_intermediate_size": 24, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
    windows = {"head_dim": 8, "num_local_experts": 4, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
    kinds = (
        ("gpt2", transformers.GPT2LMHeadModel, transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes), byte_level()),
        ("llama", transformers.LlamaForCausalLM, transformers.LlamaConfig(max_position_embeddings=128, **wide, **sizes), byte_fallback()),
        ("mixtral", transformers.MixtralForCausalLM, transformers.MixtralConfig(num_local_experts=4, **experts, **sizes), byte_fallback()),
        ("deepseek_v3", transformers.DeepseekV3ForCausalLM, transformers.DeepseekV3Config(**{**experts, **latent, **grouped, "num_key_value_heads": 4}, **sizes), byte_level()),
        ("gpt_oss", transformers.GptOssForCausalLM, transformers.GptOssConfig(**experts, **windows, **sizes), byte_level()),
        ("bart", transformers.BartForConditionalGeneration, transformers.BartConfig(**bart, **sizes), byte_level()),
        ("t5", transformers.T5ForConditionalGeneration, transformers.T5Config(**t5, **sizes), word_pieces()),
    )
    return [subject(scratch / kind[0], seed, *kind) for kind in kinds if fnmatch.fnmatch(kind[0], names)]


def subject(folder: Path, seed: int, name: str, kind: type, config, tokenizer) -> Subject:
    """A checkpoint in a folder, and prompts padded as their model wants it."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    random = np.random.default_rng(seed)
    rows = [random.integers(3, VOCAB, n).tolist() for n in LENGTHS]
    if name == "gpt2":
        rows[0][3:5] = rows[0][7:9]
    encodes = model.config.is_encoder_decoder
    pad = lambda row, value, mark: (row + [value] * (LENGTHS[0] - len(row))) if mark else [value] * (LENGTHS[0] - len(row)) + row
    inputs = {
        "input_ids": torch.tensor([pad(row, PAD, encodes) for row in rows]),
        "attention_mask": torch.tensor([pad([1] * len(row), 0, encodes) for row in rows]),
    }
    tensor_file.write(folder / "in.safetensors", {key: value.to(torch.int32) for key, value in inputs.items()}, {})
    special = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS}
    if encodes:
        special["decoder_start_token_id"] = model.config.decoder_start_token_id
    return Subject(name, model, tokenizer, folder, inputs, special)


TEXT = ["the thing and the other thought of them all, ever and anon", "you would outlast another four hours there, thou and they", "é ü ñ 漢 🙂"] * 3
SPECIAL = ["<s>", "<pad>", "</s>"]


def byte_level():
    """BPE of bytes that characters stand for."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", pad_token="<pad>", eos_token="</s>")


def byte_fallback():
    """BPE of words that begin with a mark, and tokens of single bytes."""
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    base = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
    base.pre_tokenizer = pre_tokenizers.Metaspace()
    base.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    base.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=base, bos_token="<s>", pad_token="<pad>", eos_token="</s>")


def word_pieces():
    """Words and their ends."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="<s>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    made.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", pad_token="<pad>", eos_token="</s>")


def likely(key: str, tokens: list[list[int]]):
    """A value of a key about the tokens that come without it."""
    row = max(tokens, key=len)
    first, pair = sorted({row[0] for row in tokens}), row[2:4] or row[:1]
    return {
        "bad_words_ids": [[first[0]], pair], "sequence_bias": [[[first[-1]], -4.5], [pair, -20.0]],
        "suppress_tokens": row[1:3], "begin_suppress_tokens": first,
    }[key]


def verdict(subject: Subject, program: str, config: dict, keys: list[str], without) -> dict:
    """What both make of a configuration."""
    try:
        theirs, is_ordered = subject.judged(config), subject.is_ordered
    except Exception as error:
        ours, said = subject.ours(program, config)
        return {"verdict": "fails", "theirs": str(error)[:120], "ours": "runs" if ours else said.strip()[-200:]}
    ours, said = subject.ours(program, config)
    names = any(key in said for key in keys)
    if ours is None:
        return {"verdict": "refused" if names else "UNNAMED", "said": said.strip()[-300:]}
    if ours == theirs:
        return {"verdict": "same", "changed": theirs != without}
    notes = "\n".join(line for line in said.splitlines() if line.startswith("note:"))
    if any(key in notes for key in keys) or ("do_sample" in config and "do_sample" in notes):
        return {"verdict": "noted"}
    exact = subject.exactly(config)
    kind = "rounding" if ours == exact else "SILENT" if is_ordered else "unordered"
    return {"verdict": kind, "ours": ours, "theirs": theirs, "said": said.strip()}


def sweep(args: argparse.Namespace):
    """A line for each configuration."""
    missing = {key for key in vars(GenerationConfig()) if not key.startswith("_")} - set(VALUES)
    if missing:
        raise SystemExit(f"no values of {sorted(missing)}")
    random = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        for one in subjects(Path(scratch), args.seed, args.models):
            # Tokens that come, so that sequences end at different lengths.
            endless = one.judged({**one.special, "eos_token_id": None, "max_new_tokens": 10})
            one.special["eos_token_id"] = sorted({endless[0][6], endless[1][3]})
            without = one.judged({**one.special, "max_new_tokens": 10})
            for key, values in VALUES.items():
                if not fnmatch.fnmatch(key, args.keys):
                    continue
                for value in values:
                    value, needs = value if isinstance(value, tuple) else (value, {})
                    value = likely(key, without) if value == "likely" else value
                    length = {} if key in ("max_length", "max_new_tokens") else {"max_new_tokens": 10}
                    base = {**one.special, **length, **needs}
                    config = {**base, key: value}
                    before = None if "do_sample" in needs else one.judged(base)
                    yield {"model": one.name, "key": key, "value": value, **needs, **verdict(one, args.program, config, [key], before)}
            for _ in range(args.random):
                keys = [str(key) for key in random.choice(RANDOM, random.integers(2, 6), replace=False)]
                config = dict(one.special)
                for key in keys:
                    value = VALUES[key][random.integers(len(VALUES[key]))]
                    value, needs = value if isinstance(value, tuple) else (value, {})
                    config.update({**needs, key: likely(key, without) if value == "likely" else value})
                yield {"model": one.name, "key": "random", "config": config, **verdict(one, args.program, config, keys, None)}


def main() -> None:
    """Runs the sweep, and counts the verdicts."""
    parser = start.options(__doc__, "lines of JSON are written here")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", default="*", help="a pattern of models")
    args = parser.parse_args()
    counts, faults, lines = collections.Counter(), 0, []
    for line in sweep(args):
        counts[line["verdict"]] += 1
        lines.append(json.dumps(line))
        if line["verdict"] in ("SILENT", "UNNAMED"):
            faults += 1
            print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")
    print(dict(counts))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
