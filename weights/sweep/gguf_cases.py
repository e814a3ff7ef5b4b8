"""The cases of `gguf_architectures.py`: checkpoints of transformers by their model type, and what differs in some of them."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fixtures import checkpoint, tensor_file

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A checkpoint that is to be converted."""

    model_type: str
    sizes: dict = field(default_factory=dict)
    head: str = ""
    is_encoder: bool = False
    is_causal: bool = True
    no: tuple[str, ...] = ()  # keys that this checkpoint has not, or null
    other: str = ""  # why llama.cpp's tokens are others
    architecture: str = ""  # the file's in the place of the converter's own
    zero: str = "none"  # the ends of tensors that the converter leaves out
    signs: str = "none"  # the ends of tensors of one absolute value, which the converter's rounding to ternary values keeps
    remote: Callable[[dict, Tensors], None] | None = None  # turns the checkpoint into that of code on the Hub

    def write(self, folder: Path, seed: int) -> None:
        made = folder / "as-transformers"
        shutil.rmtree(folder, ignore_errors=True)
        sizes = {key: value for key, value in (WIDTHS | self.sizes).items() if value is not None}
        sizes |= dict.fromkeys(self.no)
        layout = checkpoint.Layout(config_names="v5", head=self.head)
        checkpoint.write(made, self.model_type, sizes, seed, layout)
        config, tensors = json.loads((made / "config.json").read_text()), tensor_file.read_all(made)
        # Numbers of 16 bits, so that a file of F16 holds the same.
        tensors = {name: tensor.half().float() if tensor.dim() > 1 else tensor for name, tensor in tensors.items()}
        tensors = {name: torch.zeros_like(tensor) if name.endswith(self.zero) else tensor for name, tensor in tensors.items()}
        tensors = {name: torch.where(tensor < 0, -0.25, 0.25) if name.endswith(self.signs) else tensor for name, tensor in tensors.items()}
        checkpoint.write_weights(made, tensors, 1)
        if self.remote:
            self.remote(config, tensors)
        (folder / "config.json").write_text(json.dumps(config))
        # Of which some converters count the words.
        words = {f"w{i}": i for i in range(config.get("vocab_size", 0))}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": words}, "added_tokens": []}))
        checkpoint.write_weights(folder, tensors, 1)
        if self.is_encoder:
            (folder / "encoder").touch()
        if self.model_type == "t5" and not self.is_encoder:
            (folder / "joined").touch()
        (folder / "other.txt").write_text(self.other)
        if not self.is_causal:
            (folder / "bidirectional").touch()
        (folder / "architecture.txt").write_text(self.architecture)


def named(name: str, **keys) -> Callable[[dict, Tensors], None]:
    """Gives the class the name that files on the Hub have, and keys that transformers does not write; None leaves one out."""

    def change(config: dict, tensors: Tensors) -> None:
        config["architectures"] = [name or config["architectures"][0]]
        for key, value in keys.items():
            config.pop(key, None)
            if value is not None:
                config[key] = value

    return change


def renamed(name: str, model_type: str, *changes: tuple[str, str], **keys) -> Callable[[dict, Tensors], None]:
    """The same with other names of tensors, by regular expressions."""

    def change(config: dict, tensors: Tensors) -> None:
        named(name, model_type=model_type, **keys)(config, tensors)
        for old in list(tensors):
            new = old
            for pattern, replacement in changes:
                new = re.sub(pattern, replacement, new)
            tensors[new] = tensors.pop(old)

    return change


def joined(tensors: Tensors, names: tuple[str, ...], new: str) -> None:
    """Joins the rows of the tensors whose names end with these."""
    for old in [name for name in tensors if names[0] in name]:
        tensors[old.replace(names[0], new)] = torch.cat([tensors.pop(old.replace(names[0], name)) for name in names])


def internlm2(config: dict, tensors: Tensors) -> None:
    """Of every group: its queries, its key and its value."""
    heads, groups, width = config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]
    for layer in range(config["num_hidden_layers"]):
        q, k, v = (tensors.pop(f"model.layers.{layer}.self_attn.{name}_proj.weight") for name in "qkv")
        parts = [part.reshape(groups, -1, width // heads, width) for part in (q, k, v)]
        tensors[f"model.layers.{layer}.attention.wqkv.weight"] = torch.cat(parts, 1).reshape(-1, width)
    renamed(
        "InternLM2ForCausalLM", "internlm2",
        ("embed_tokens", "tok_embeddings"), ("lm_head", "output"), ("self_attn.o_proj", "attention.wo"), ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "feed_forward.w1"), ("mlp.up_proj", "feed_forward.w3"), ("mlp.down_proj", "feed_forward.w2"),
    )(config, tensors)


def qwen(config: dict, tensors: Tensors) -> None:
    joined(tensors, ("q_proj", "k_proj", "v_proj"), "c_attn")
    renamed(
        "QWenLMHeadModel", "qwen",
        ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"), (r"model.layers", "transformer.h"), ("self_attn.c_attn", "attn.c_attn"),
        ("self_attn.o_proj", "attn.c_proj"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"), ("gate_proj", "w2"), ("up_proj", "w1"), ("down_proj", "c_proj"),
        layer_norm_epsilon=config["rms_norm_eps"], intermediate_size=2 * config["intermediate_size"], rotary_emb_base=config["rope_parameters"]["rope_theta"],
    )(config, tensors)


def stablelm(config: dict, tensors: Tensors) -> None:
    """Stacks the norms of the heads, which the converter fails at."""
    for layer in range(config["num_hidden_layers"]):
        for name, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"])):
            stem = f"model.layers.{layer}.self_attn.{name}_layernorm"
            tensors[f"{stem}.weight"] = torch.stack([tensors.pop(f"{stem}.norms.{head}.weight") for head in range(heads)])


def jina(config: dict, tensors: Tensors) -> None:
    """The repository's own names, with the adapters that a file of their own gets."""
    renamed("XLMRobertaModel", "xlm-roberta-flash", lora_adaptations=["none"])(config, tensors)


def nomic(config: dict, tensors: Tensors) -> None:
    """The keys of GPT-2 that its files have."""
    keys = {"n_positions": "max_position_embeddings", "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers"}
    said = {
        **{"activation_function": "swiglu", "causal": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0},
        **{"rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "use_rms_norm": False, "layer_norm_epsilon": config["layer_norm_eps"], "type_vocab_size": 2},
        **{"vocab_size": config["vocab_size"], "model_type": "nomic_bert_of_the_hub", "prenorm": False, "parallel_block": False, "max_trained_positions": 2048},
    }
    said |= {key: config.get(own) for key, own in keys.items()} | {"rotary_emb_base": config.get("rope_parameters", {}).get("rope_theta", 1000.0)}
    said |= {"architectures": ["NomicBertModel"], "n_positions": 8192}  # the converter takes those of the first model
    config.clear()
    config.update(said)


def codeshell(config: dict, tensors: Tensors) -> None:
    joined(tensors, ("q_proj", "k_proj", "v_proj"), "c_attn")
    renamed(
        "CodeShellForCausalLM", "codeshell",
        ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"), (r"model.layers", "transformer.h"), ("self_attn.c_attn", "attn.c_attn"),
        ("self_attn.o_proj", "attn.c_proj"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"),
        n_positions=64, n_embd=config["hidden_size"], n_head=config["num_attention_heads"], num_query_groups=config["num_key_value_heads"],
        layer_norm_epsilon=config["norm_epsilon"], n_layer=config["num_hidden_layers"],
    )(config, tensors)


def llada(config: dict, tensors: Tensors) -> None:
    renamed(
        "LLaDAModelLM", "llada",
        ("model.embed_tokens", "model.transformer.wte"), ("model.norm", "model.transformer.ln_f"), ("lm_head", "model.transformer.ff_out"), (r"model.layers", "model.transformer.blocks"),
        ("self_attn.o_proj", "attn_out"), (r"self_attn\.", ""), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ff_norm"), ("mlp.gate_proj", "ff_proj"), ("mlp.up_proj", "up_proj"), ("mlp.down_proj", "ff_out"),
        d_model=config["hidden_size"], mlp_hidden_size=config["intermediate_size"], max_sequence_length=64, n_layers=config["num_hidden_layers"],
    )(config, tensors)


EXAONE = (
    ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"), (r"model.layers", "transformer.h"), ("self_attn.o_proj", "attn.attention.out_proj"),
    ("self_attn", "attn.attention"), ("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2"), ("gate_proj", "c_fc_0"), ("up_proj", "c_fc_1"), ("down_proj", "c_proj"),
)

WIDTHS = {"vocab_size": 41, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
WIDE = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 36, "max_position_embeddings": 64}
SPLIT = WIDE | {"head_dim": None}

ROUTED = {"n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 10, "n_shared_experts": 2, "first_k_dense_replace": 1}
GROUPED = ROUTED | {"n_group": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
PARTS = "it turns other pairs of dimensions where only a part of a head turns"
EPSILON = "it takes the file's epsilon in the norms of latent attention too"
LATENT = {
    **{"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 36, "max_position_embeddings": 64, "head_dim": None},
    **{"q_lora_rank": 14, "kv_lora_rank": 20, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10},
}
WINDOWS = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
USUAL = {"rope_type": "default", "rope_theta": 10000.0}  # where the converter writes none
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
IMAGES = {"text_config": SPLIT | {"num_hidden_layers": 2, "rms_norm_eps": 2e-3} | WIDTHS}
ENCODER = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 36, "max_position_embeddings": 64}
OLD = {"n_embd": 24, "n_head": 4, "n_inner": None, "n_positions": 64}


def further(config: dict, tensors: Tensors) -> None:
    """A layer that predicts the token after the next, as files of Qwen 3.5 have it: an attention layer, and a projection in front."""
    width, last = config["hidden_size"], config["num_hidden_layers"] - 1
    layer = f"model.layers.{last}."
    copies = {f"mtp.layers.0.{name.removeprefix(layer)}": tensor.flip(0) for name, tensor in tensors.items() if name.startswith(layer)}
    norms = {f"mtp.{name}.weight": torch.zeros(width) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    tensors |= copies | norms | {"mtp.fc.weight": torch.full((width, 2 * width), 0.25)}
    named("", full_attention_interval=2, mtp_num_hidden_layers=1)(config, tensors)


def granite_4(config: dict, tensors: Tensors) -> None:
    """The names of layers that its files have."""
    kinds = {"linear_attention": "mamba", "full_attention": "attention"}
    named("", layer_types=[kinds[kind] for kind in config["layer_types"]])(config, tensors)


def experts_in_out(config: dict, tensors: Tensors) -> None:
    """Experts `[d_in, d_out]`, as files of Qwen3-VL have them."""
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()


def kinds(letters: str) -> list[str]:
    """Nemotron-H's layers by a letter each."""
    return [{"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}[letter] for letter in letters]


def lettered(letters: str, **keys) -> Callable[[dict, Tensors], None]:
    """The letters that its files have, and the width of a head, which the converter takes for 64."""
    return named("", hybrid_override_pattern=letters, layers_block_type=None, num_hidden_layers=len(letters), mamba_d_head=8, **keys)


# Value heads of the keys' width, which llama.cpp demands; every second layer has attention.
DELTA = WIDE | {
    **{"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2, "linear_conv_kernel_dim": 4},
    **{"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
SHARED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "shared_expert_intermediate_size": 14}
OF_AXES = {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.75, "mrope_section": [1, 1, 1]}}
# An inner width of twice the model's, which llama.cpp demands too.
MAMBA = SPLIT | {
    **{"mamba_n_heads": 6, "mamba_d_head": 8, "mamba_expand": 2, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_conv_bias": True},
    **{"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "time_step_limit": [0.0, float("inf")]},
}
SELECTIVE = {"hidden_size": 24, "intermediate_size": 48, "expand": 2, "state_size": 5, "conv_kernel": 4, "time_step_rank": 3, "num_hidden_layers": 3, "layer_norm_epsilon": 2e-3, "use_conv_bias": True}
JAMBA = SPLIT | {
    **{"num_hidden_layers": 5, "attn_layer_period": 3, "attn_layer_offset": 1, "rms_norm_eps": 2e-3},
    **{"mamba_expand": 2, "mamba_d_state": 5, "mamba_d_conv": 4, "mamba_dt_rank": 3, "mamba_conv_bias": True},
}
SIDE_BY_SIDE = WIDE | {
    **{"num_hidden_layers": 2, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_conv_bias": True, "time_step_limit": [0.0, float("inf")], "mamba_d_state": 16, "mamba_d_conv": 4, "rms_norm_eps": 2e-3},
    # Powers of two, with which the converter multiplies weights of 16 bits without rounding.
    **{"embedding_multiplier": 4.0, "lm_head_multiplier": 0.5, "attention_in_multiplier": 2.0, "attention_out_multiplier": 0.5, "key_multiplier": 0.25},
    **{"ssm_in_multiplier": 2.0, "ssm_out_multiplier": 0.25, "mlp_multipliers": [0.5, 2.0], "ssm_multipliers": [0.5, 2.0, 0.25, 4.0, 1.0]},
}
LFM2 = SPLIT | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3, "norm_eps": 2e-3}
ALONE = {"hidden_size": 24, "n_groups": 2, "conv_kernel": 4, "layer_norm_epsilon": 2e-3, "use_conv_bias": True}
# A smallest step that is never reached, since llama.cpp bounds none.
NEMOTRON = WIDE | ALONE | {"mamba_num_heads": 6, "mamba_head_dim": 8, "ssm_state_size": 16, "time_step_min": 1e-9, "num_hidden_layers": 5}
NO_EXPERTS = ("n_routed_experts", "num_experts_per_tok", "n_group", "topk_group")
OF_EXPERTS = {"n_routed_experts": 6, "num_experts_per_tok": 2, "routed_scaling_factor": 1.7, "moe_intermediate_size": 10, "moe_shared_expert_intermediate_size": 14}
FACTORS = {"attention_multiplier": 0.4, "residual_multiplier": 0.7, "embedding_multiplier": 3.0, "logits_scaling": 2.0}

CASES = {
    "llama": Case("llama", WIDE),
    "mistral3": Case("ministral3", WIDE | {"rope_parameters": YARN | {"original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7}}),
    "mixtral": Case("mixtral", SPLIT | EXPERTS, no=("sliding_window",)),
    "qwen2": Case("qwen2", SPLIT | {"use_sliding_window": False}),
    "qwen3": Case("qwen3", WIDE | {"use_sliding_window": False}),
    "qwen2moe": Case("qwen2_moe", SPLIT | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "shared_expert_intermediate_size": 20, "mlp_only_layers": [], "norm_topk_prob": False}),
    "qwen3moe": Case("qwen3_moe", WIDE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "mlp_only_layers": [], "norm_topk_prob": True}),
    "gemma": Case("gemma", WIDE | {"rope_parameters": USUAL}),
    "gemma2": Case("gemma2", WIDE | {"query_pre_attn_scalar": 8, "rope_parameters": USUAL}),
    "gemma3": Case("gemma3_text", WIDE | {"num_hidden_layers": 6, "sliding_window_pattern": 6, "query_pre_attn_scalar": 8}),
    "gemma3n": Case("gemma3n_text", WIDE | {
        **{"num_hidden_layers": 12, "intermediate_size": [36] * 12, "altup_num_inputs": 4, "altup_active_idx": 0, "laurel_rank": 64, "num_kv_shared_layers": 0},
        **{"vocab_size_per_layer_input": 41, "hidden_size_per_layer_input": 256, "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 2, "final_logit_softcapping": 30.0},
        **{"layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2 + ["sliding_attention"] * 2},
    }, other="it divides by one less for the deviation of a sparse feed-forward"),
    "gemma4": Case("gemma4_text", WIDE | {"hidden_size": 24, "num_key_value_heads": 2, "hidden_size_per_layer_input": 10, "vocab_size_per_layer_input": 41, "per_layer_config": {1: {"head_dim": 16}, 3: {"head_dim": 16}}}),
    "gemma4-experts": Case("gemma4_text", WIDE | {
        **{"hidden_size": 24, "num_key_value_heads": 2, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        **{"per_layer_config": {1: {"head_dim": 16}, 3: {"head_dim": 16}}, "use_double_wide_mlp": False, "attention_k_eq_v": True},
        **{"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 10},
    }),
    "phi2": Case("phi", SPLIT | {"num_key_value_heads": 4, "intermediate_size": 96, "rope_parameters": USUAL | {"partial_rotary_factor": 0.7}}),
    "phi3": Case("phi3", SPLIT, no=("sliding_window",)),
    "starcoder": Case("gpt_bigcode", OLD | {"n_inner": 96}),
    "starcoder2": Case("starcoder2", SPLIT, no=("sliding_window",)),
    "falcon-7b": Case("falcon", {"hidden_size": 24, "num_attention_heads": 4, "ffn_hidden_size": 96, "rope_parameters": USUAL, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True}, remote=named("", model_type="RefinedWebModel", num_kv_heads=None)),
    "falcon-40b": Case("falcon", {"hidden_size": 24, "num_attention_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 96, "rope_parameters": USUAL, "new_decoder_architecture": True}),
    "mpt": Case("mpt", {"d_model": 24, "n_heads": 4, "max_seq_len": 64, "layer_norm_epsilon": 1e-5}, remote=named("MPTForCausalLM")),
    "bloom": Case("bloom", {"hidden_size": 24, "n_head": 4}),
    "gptneox": Case("gpt_neox", ENCODER | {"rope_parameters": USUAL | {"partial_rotary_factor": 0.7}}, remote=named("", model_type="pythia", rotary_pct=0.7)),
    "gpt2": Case("gpt2", {"n_embd": 24, "n_head": 4, "n_inner": 96, "n_positions": 64}, "GPT2LMHeadModel", remote=named("", n_ctx=64)),
    "stablelm": Case("stablelm", SPLIT | {"rope_parameters": USUAL | {"partial_rotary_factor": 0.7}}),
    "stablelm-parallel": Case("stablelm", SPLIT | {"use_parallel_residual": True, "qk_layernorm": True, "rope_parameters": USUAL | {"partial_rotary_factor": 0.7}}, remote=stablelm),
    "olmo": Case("olmo", SPLIT),
    "olmo2": Case("olmo2", SPLIT),
    "olmo3": Case("olmo3", SPLIT | {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}, "num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}),
    "olmoe": Case("olmoe", SPLIT | {"num_key_value_heads": 4, "norm_topk_prob": False, "rms_norm_eps": 1e-5}),
    "granite": Case("granite", SPLIT | {"attention_multiplier": 0.4, "residual_multiplier": 0.7, "embedding_multiplier": 3.0, "logits_scaling": 2.0}),
    "granitemoe": Case("granitemoe", SPLIT | {"intermediate_size": 10}),
    "granitemoe-shared": Case("granitemoeshared", SPLIT | {"intermediate_size": 10, "shared_intermediate_size": 14}),
    "granite-swa": Case("granite_swa", SPLIT, no=("layer_rope_theta",)),
    "command-r": Case("cohere", SPLIT),
    "command-r-plus": Case("cohere", SPLIT | {"use_qk_norm": True, "num_hidden_layers": 64}),
    "cohere2": Case("cohere2", SPLIT | {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, remote=named("", rotary_pct=1.0)),
    "chatglm": Case("glm", WIDE | {"head_dim": 6, "rms_norm_eps": 1e-5, "rope_parameters": USUAL | {"partial_rotary_factor": 0.7}}),
    "glm4": Case("glm4", WIDE | {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}}),
    "glm4moe": Case("glm4_moe", WIDE | GROUPED),
    "glm4moe-lite": Case("glm4_moe_lite", LATENT | ROUTED | {"mlp_layer_types": ["dense", "sparse"], "attention_bias": False}, other=EPSILON, remote=named("", scoring_func="sigmoid")),
    "exaone4": Case("exaone4", WIDE | {"head_dim": 6, "num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}, no=("sliding_window",)),
    "exaone4-windows": Case("exaone4", WIDE | {"head_dim": 6, "num_hidden_layers": 64, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 16}),
    "exaone-moe": Case("exaone_moe", WIDE | {"num_experts": 6, "moe_intermediate_size": 10, "num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}, remote=named("", scoring_func="sigmoid")),
    "afmoe": Case("afmoe", WIDE | {"head_dim": 6, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "num_hidden_layers": 8, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2, "mup_enabled": True, "route_scale": 1.7}, remote=named("", route_norm=True)),
    "nemotron": Case("nemotron", WIDE | {"head_dim": 6, "rope_parameters": PLAIN | {"partial_rotary_factor": 0.7}}),
    # This llama.cpp has SiLU always; later ones read the activation.
    "bitnet": Case("bitnet", SPLIT | {"attention_bias": False, "hidden_act": "silu", "tie_word_embeddings": True}, signs="_proj.weight", remote=renamed("BitnetForCausalLM", "bitnet", ("attn_sub_norm", "inner_attn_ln"), ("ffn_sub_norm", "ffn_layernorm"))),
    "arcee": Case("arcee", WIDE | {"attention_bias": False, "mlp_bias": False}),
    "smollm3": Case("smollm3", SPLIT | {"num_hidden_layers": 4, "no_rope_layer_interval": 4}, no=("no_rope_layers", "sliding_window", "layer_types")),
    "apertus": Case("apertus", SPLIT),
    "seed_oss": Case("seed_oss", WIDE),
    "ernie4_5": Case("ernie4_5", WIDE | {"use_bias": False}),
    "ernie4_5-moe": Case("ernie4_5_moe", WIDE | {"moe_intermediate_size": 9}),
    "hunyuan-dense": Case("hunyuan_v1_dense", WIDE),
    "hunyuan-moe": Case("hunyuan_v1_moe", WIDE, remote=named("", model_type="hunyuan", moe_intermediate_size=[36, 36], moe_topk=[2, 2], num_shared_expert=[1, 1])),
    "minimax-m2": Case("minimax_m2", WIDE | {"intermediate_size": 10, "rotary_dim": 4}, remote=named("", scoring_func="sigmoid")),
    "dots1": Case("dots1", WIDE | ROUTED | {"num_key_value_heads": 4}, no=("sliding_window", "max_window_layers"), remote=named("", scoring_func="sigmoid")),
    "deepseek2-lite": Case("deepseek_v2", LATENT | ROUTED | {"hidden_size": 32, "q_lora_rank": None, "topk_method": "greedy", "num_hidden_layers": 27}, other=EPSILON),
    "deepseek2": Case("deepseek_v3", LATENT | GROUPED | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}}, other=EPSILON, remote=named("", scoring_func="sigmoid")),
    "minicpm3": Case("minicpm3", LATENT | {"rope_parameters": USUAL, "v_head_dim": 6, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}, other=EPSILON),
    "youtu": Case("youtu", LATENT | {"pad_token_id": None, "rope_interleave": True, "attention_bias": False}, other=EPSILON),
    "llama4": Case("llama4_text", WIDE | {"intermediate_size": 10, "intermediate_size_mlp": 36, "attention_bias": False, "num_hidden_layers": 4, "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "num_experts_per_tok": 1}, no=("moe_layers", "no_rope_layers")),
    "gpt-oss": Case("gpt_oss", WIDE | {"intermediate_size": 20, "swiglu_limit": 7.0, "rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}),
    "jais2": Case("jais2", WIDE),
    "internlm3": Case("internlm3", SPLIT),
    "solar-open": Case("solar_open", WIDE | ROUTED, remote=named("", partial_rotary_factor=1.0, first_k_dense_replace=0)),
    "qwen2vl": Case("qwen2_vl", IMAGES | {"text_config": IMAGES["text_config"] | {"rope_parameters": PLAIN | {"mrope_section": [1, 1, 1]}}}),
    "qwen3vl": Case("qwen3_vl", IMAGES | {"text_config": IMAGES["text_config"] | {"head_dim": 8, "rope_parameters": PLAIN | {"mrope_section": [2, 1, 1]}}}),
    "bert": Case("bert", ENCODER, is_encoder=True),
    "roberta": Case("roberta", ENCODER, "RobertaModel", is_encoder=True),
    "nomic-bert": Case("nomic_bert", ENCODER, is_encoder=True, remote=nomic),
    "modern-bert": Case("modernbert", ENCODER, "ModernBertModel", is_encoder=True, remote=named("", layer_norm_eps=2e-3, norm_eps=None)),
    "eurobert": Case("eurobert", ENCODER | {"num_key_value_heads": 2}, "EuroBertModel", is_encoder=True, remote=named("", model_type="euro", classifier_pooling=None)),
    "jina-bert-v3": Case("jina_embeddings_v3", ENCODER, "JinaEmbeddingsV3Model", is_encoder=True, remote=jina),
    "gemma-embedding": Case("gemma3_text", WIDE | {"num_hidden_layers": 6, "sliding_window_pattern": 6, "query_pre_attn_scalar": 8, "use_bidirectional_attention": True}, "Gemma3TextModel", is_encoder=True),
    "t5": Case("t5", {"d_model": 24, "d_kv": 8, "num_heads": 4, "d_ff": 36, "relative_attention_max_distance": 128}),
    "t5-gated": Case("t5", {"d_model": 24, "d_kv": 8, "num_heads": 4, "d_ff": 36, "relative_attention_max_distance": 128, "feed_forward_proj": "gated-gelu"}),
    "t5encoder": Case("t5", {"d_model": 24, "d_kv": 8, "num_heads": 4, "d_ff": 36, "relative_attention_max_distance": 128}, "T5EncoderModel", is_encoder=True),
    "baichuan": Case("llama", SPLIT | {"head_dim": 6, "num_key_value_heads": 4, "num_hidden_layers": 32}, remote=named("XverseForCausalLM", model_type="xverse"), architecture="baichuan"),
    "internlm2": Case("llama", SPLIT | {"head_dim": 6}, remote=internlm2),
    "xverse": Case("llama", SPLIT | {"head_dim": 6} | {"num_key_value_heads": 4}, remote=named("XverseForCausalLM", model_type="xverse")),
    "orion": Case("stablelm", SPLIT | {"rope_parameters": USUAL | {"partial_rotary_factor": 1.0}, "num_key_value_heads": 4}, remote=named("OrionForCausalLM", model_type="orion", rms_norm_eps=2e-3)),
    "exaone": Case("llama", SPLIT | {"head_dim": 6}, remote=renamed("ExaoneForCausalLM", "exaone-3", *EXAONE, activation_function="silu")),
    "qwen": Case("qwen2", SPLIT | {"num_key_value_heads": 4, "use_sliding_window": False}, remote=qwen),
    "codeshell": Case("starcoder2", SPLIT | {"tie_word_embeddings": False, "intermediate_size": 96, "rope_parameters": USUAL}, no=("sliding_window",), remote=codeshell),
    "minicpm": Case("granite", SPLIT | {"attention_multiplier": 6**-0.5, "residual_multiplier": 0.9 / 2**0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0}, remote=named("MiniCPMForCausalLM", model_type="minicpm", scale_emb=3.0, scale_depth=0.9, dim_model_base=12)),
    "dream": Case("qwen2", SPLIT | {"use_sliding_window": False, "is_causal": False}, remote=named("DreamModel", model_type="Dream"), is_causal=False),
    "pangu-embedded": Case("llama", SPLIT | {"head_dim": 6, "attention_bias": True}, remote=named("PanguEmbeddedForCausalLM", model_type="PanguEmbedded")),
    "llada": Case("llama", SPLIT | {"head_dim": 6, "is_causal": False}, remote=llada, is_causal=False),
    "llama-embed": Case("llama", SPLIT | {"head_dim": 6, "is_causal": False}, "LlamaModel", is_encoder=True, remote=named("LlamaBidirectionalModel", model_type="llama_bidirec")),
    "rnd1": Case("qwen3_moe", WIDE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10, "mlp_only_layers": [], "norm_topk_prob": True, "is_causal": False}, remote=named("RND1", model_type="rnd1"), is_causal=False),
    "jina-bert-v2": Case("jina_bert", ENCODER | {"type_vocab_size": 2}, is_encoder=True),
    "jina-bert-v2-code": Case("jina_code", ENCODER | {"type_vocab_size": 2}, is_encoder=True, other="it activates the half that the model's code does not"),
    "nomic-bert-moe": Case("nomic_bert_moe", ENCODER | {"num_hidden_layers": 4}, is_encoder=True, zero="mlp.experts.bias", remote=named("", n_positions=2048, max_trained_positions=2048, model_type="nomic_bert_of_the_hub")),
    # The class has a scaling by default, which this file does not.
    "apertus-plain": Case("apertus", SPLIT | {"rope_parameters": PLAIN}),
    "qwen3next": Case(
        "qwen3_next",
        DELTA | SHARED | {"linear_num_value_heads": 4, "mlp_only_layers": [], "norm_topk_prob": True, "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}},
        remote=named("", full_attention_interval=2),
    ),
    "qwen35": Case("qwen3_5_text", DELTA | OF_AXES | {"linear_num_value_heads": 6}, remote=further),
    "qwen35-alike": Case("qwen3_5_text", DELTA | OF_AXES | {"linear_num_value_heads": 2, "tie_word_embeddings": True}, remote=named("", full_attention_interval=2)),
    "qwen35moe": Case("qwen3_5_moe_text", DELTA | OF_AXES | SHARED | {"linear_num_value_heads": 4}, remote=named("", full_attention_interval=2)),
    "granitehybrid": Case("granitemoehybrid", MAMBA | FACTORS | {"intermediate_size": 36, "shared_intermediate_size": 36, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": None}, remote=granite_4),
    "granitehybrid-experts": Case("granitemoehybrid", MAMBA | FACTORS | {"intermediate_size": 10, "shared_intermediate_size": 14, "num_local_experts": 4, "num_experts_per_tok": 2, "position_embedding_type": None}, remote=granite_4),
    "bamba": Case("bamba", MAMBA | {"layer_types": None, "attn_layer_indices": [1], "rope_parameters": PLAIN | {"partial_rotary_factor": 0.7}}, other=PARTS, remote=named("", attn_rotary_emb=4)),
    "lfm2": Case("lfm2", LFM2 | {"block_auto_adjust_ff_dim": False}),
    "lfm2moe": Case("lfm2_moe", LFM2 | {"moe_intermediate_size": 10, "num_experts": 4, "num_experts_per_tok": 2, "num_dense_layers": 1, "routed_scaling_factor": 1.0}),
    "mamba2": Case("mamba2", ALONE | {"num_heads": 6, "head_dim": 8, "state_size": 16, "num_hidden_layers": 3, "time_step_limit": [0.0, float("inf")]}),
    # With a type that transformers does not know: it would add keys of experts.
    "nemotron-h": Case("nemotron_h", NEMOTRON | {"layers_block_type": kinds("M-*M-")}, remote=lettered("M-*M-", model_type="nemotron_h_of_the_hub", **dict.fromkeys(NO_EXPERTS))),
    "nemotron-h-experts": Case("nemotron_h", NEMOTRON | OF_EXPERTS | {"n_group": 1, "topk_group": 1, "layers_block_type": kinds("ME*ME")}, remote=lettered("ME*ME")),
    "nemotron-h-groups": Case("nemotron_h", NEMOTRON | OF_EXPERTS | {"n_group": 3, "topk_group": 2, "layers_block_type": kinds("EM*EM")}, remote=lettered("EM*EM")),
    "nemotron-h-latent": Case("nemotron_h", NEMOTRON | OF_EXPERTS | {"n_group": 1, "topk_group": 1, "moe_latent_size": 12, "layers_block_type": kinds("ME*ME")}, remote=lettered("ME*ME")),
    "kimi-linear": Case(
        "kimi_linear",
        {
            **{"hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4},
            **{"layer_types": ["linear_attention", "full_attention"] * 2, "linear_head_dim": 10, "linear_num_heads": 4},
            **{"linear_conv_kernel_dim": 3, "kv_lora_rank": 14, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 8},
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "moe_intermediate_size": 10, "routed_scaling_factor": 1.7},
        },
        # transformers gives dense layers the experts' name.
        remote=renamed("", "kimi_linear", (r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj"), moe_router_activation_func="sigmoid", first_k_dense_replace=1, linear_attn_config={"full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 10, "num_heads": 4, "short_conv_kernel_size": 3}),
    ),
    "mamba": Case("mamba", SELECTIVE | {"tie_word_embeddings": False}),
    "falcon-mamba": Case("falcon_mamba", SELECTIVE | {"state_size": 6, "mixer_rms_eps": 2e-3, "tie_word_embeddings": True}),
    "jamba": Case("jamba", JAMBA | {"num_experts": 1, "num_experts_per_tok": 1}),
    "jamba-experts": Case("jamba", JAMBA | {"num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2, "expert_layer_offset": 1}),
    "falcon-h1": Case("falcon_h1", SIDE_BY_SIDE),
    "falcon-h1-norm": Case("falcon_h1", SIDE_BY_SIDE | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "qwen3vlmoe": Case("qwen3_vl_moe", {"text_config": IMAGES["text_config"] | {"head_dim": 8, "rope_parameters": PLAIN | {"mrope_section": [2, 1, 1]}, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10}}, remote=experts_in_out),
    # Of the epsilon that the norms of latent attention have.
    "mistral4": Case("mistral4", LATENT | GROUPED | {"rms_norm_eps": 1e-6, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "attention_bias": False, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.7}}, remote=named("Mistral3ForConditionalGeneration")),
}
