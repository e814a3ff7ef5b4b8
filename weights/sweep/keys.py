"""Which keys a config.json may have, and to which other values each is changed.

The keys are those of transformers' configuration class and of its base classes, those that the family's code asks the
configuration for, and those that shared code reads whatever the class.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator

from transformers.activations import ACT2FN

# Values for one key, of which those that the configuration has already are left out.
MAX_VALUES = 4
ACTIVATIONS = ("relu", "gelu", "silu", "gelu_new", "quick_gelu", "tanh")
# Texts that mean something, by the key.
TEXTS = {
    "position_embedding_type": ("absolute", "relative_key", "relative_key_query", "rotary", "rope", "alibi"),
    "feed_forward_proj": ("relu", "gated-gelu", "gated-silu", "gelu"),
    "scoring_func": ("softmax", "sigmoid"),
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
    "norm_type": ("layer_norm", "rms_norm", "low_precision_layernorm"),
    "pos_att_type": (["c2p"], ["p2c"], ["c2p", "p2c"], []),
    "classifier_pooling": ("cls", "mean"),
    "summary_type": ("last", "first", "mean", "cls_index"),
    "norm_rel_ebd": ("none", "layer_norm"),
    "embedding_type": ("alibi", "rope"),
    "problem_type": ("regression", "single_label_classification", "multi_label_classification"),
    "dtype": ("float64",),
}
# What files say beside the keys of their class, and shared code of transformers may read.
SHARED = {
    "is_causal": (False, True),
    "use_bidirectional_attention": (True, False),
    "is_decoder": (True, False),
    "add_cross_attention": (True,),
    "is_encoder_decoder": (True, False),
    "tie_word_embeddings": (True, False),
    "tie_encoder_decoder": (True,),
    "tie_last_hidden_states": (True, False),
    "sliding_window": (2, 3, None),
    "use_sliding_window": (True, False),
    "max_window_layers": (0, 1),
    "attention_chunk_size": (2, 3),
    "num_key_value_heads": (1,),
    "head_dim": (4, 6, None),
    "partial_rotary_factor": (0.5, 1.0),
    "rotary_pct": (0.5,),
    "rope_theta": (70.0, 20000.0),
    "original_max_position_embeddings": (8, 16),
    "max_position_embeddings": (5, 64),
    "attention_bias": (True, False),
    "mlp_bias": (True, False),
    "qkv_bias": (True, False),
    "attn_logit_softcapping": (0.5,),
    "final_logit_softcapping": (0.5,),
    "logit_scale": (0.5,),
    "logits_scaling": (3.0,),
    "embedding_multiplier": (3.0,),
    "residual_multiplier": (0.5,),
    "attention_multiplier": (0.5,),
    "query_pre_attn_scalar": (3.0,),
    "num_labels": (3, 1),
    "id2label": ({"0": "a", "1": "b", "2": "c"},),
    "problem_type": TEXTS["problem_type"],
    "token_classification_bias": (False,),
    "classifier_dropout": (0.3,),
    "hidden_dropout": (0.3,),
    "chunk_size_feed_forward": (2,),
    "output_attentions": (True,),
    "output_hidden_states": (True,),
    "return_dict": (False,),
    "use_return_dict": (False,),
    "use_cache": (False, True),
    "torchscript": (True,),
    "pruned_heads": ({"0": [0]},),
    "per_layer_config": ({"0": {"num_attention_heads": 1}}, {"0": {"skip": ["attention"]}}),
    "cross_attention_hidden_size": (6,),
    "embedding_size": (6,),
    "position_embedding_type": TEXTS["position_embedding_type"],
    "layer_norm_type": ("rms_norm",),
    "logn_attention_scale": (True,),
    "use_logn_attn": (True,),
    "use_dynamic_ntk": (True,),
    "use_qk_norm": (True,),
    "qk_layernorm": (True,),
    "scale_attn_by_inverse_layer_idx": (True,),
    "parallel_attn": (True, False),
    "tensor_parallel_size": (2,),
    "pretraining_tp": (2,),
    "dtype": TEXTS["dtype"],
    "torch_dtype": TEXTS["dtype"],
    "attn_implementation": ("eager",),
    "_attn_implementation": ("sdpa",),
    "gradient_checkpointing": (True,),
    "unknown_key_of_no_one": (1,),
}
# Of these, what shared code reads, or a type of the file says.
READ_BY_ALL = {
    *("is_causal", "per_layer_config", "num_labels", "id2label", "problem_type", "is_encoder_decoder", "return_dict", "use_return_dict"),
    *("rope_theta", "partial_rotary_factor", "original_max_position_embeddings", "torchscript", "output_attentions"),
    *("tie_word_embeddings", "dtype", "torch_dtype", "sliding_window", "token_classification_bias", "head_dim", "hidden_dropout"),
}
# Rotations as files describe them, under either key.
ROTATIONS = (
    {"rope_type": "linear", "factor": 3.0},
    {"type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 0.7},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 0.7, "mscale_all_dim": 0.4},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 8, "beta_slow": 2, "truncate": False},
    {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 5, "short_factor": "SHORT", "long_factor": "LONG"},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "default", "mrope_section": [1, 1, 2]},
    {"rope_type": "ntk", "factor": 2.0},
    {"rope_type": "axial"},
)
SECTIONS = ("text_config", "vision_config", "encoder", "decoder")
ROTARY = ("rope_parameters", "rope_scaling")
# The value of a key that is left out.
ABSENT = "ABSENT"
# What names the file or its class, and nothing of its numbers.
# And the share of patches that ViT-MAE hides at random: here all are read.
SKIPPED = {"mask_ratio", "model_type", "architectures", "transformers_version", "base_config_key", "_name_or_path", "label2id"}


def changes(config, described: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Each key with another value, as a path with dots; what cannot be said by a path is left out."""
    if not prefix:
        for section in SECTIONS:
            inner = getattr(config, section, None)
            if hasattr(inner, "to_dict"):
                yield from changes(inner, described.get(section) or {}, f"{section}.")
    known = {field.name: str(field.type) for field in dataclasses.fields(config) if field.name not in SECTIONS}
    names = {*known, *config.attribute_map, *asked(config), *SHARED, *described} - SKIPPED - set(SECTIONS)
    for key in sorted(names):
        if key in ROTARY:
            continue
        value = described.get(key, default(config, key))
        if isinstance(value, dict) and key in described and key != "id2label":
            for inner, old in value.items():
                for new in other_values(inner, old, ""):
                    yield f"{prefix}{key}.{inner}", new
            continue
        for new in other_values(key, value, known.get(key, "")):
            yield f"{prefix}{key}", new
    yield from rotations(config, described, prefix)


def is_strange(config, path: str) -> bool:
    """Whether neither the class nor its code knows a key, nor shared code that may change numbers."""
    inner = config
    *outer, key = path.split(".")
    for step in outer:
        inner = getattr(inner, step, None)
        if not dataclasses.is_dataclass(inner):
            return False
    known = {field.name for field in dataclasses.fields(inner)} | {*inner.attribute_map} | asked(inner)
    return key in SHARED and key not in known and key not in READ_BY_ALL


def default(config, key: str):
    """What the configuration has of itself."""
    try:
        return getattr(config, key, None)
    except Exception:  # a property that some other key must allow
        return None


def asked(config) -> set[str]:
    """What the code beside the class asks a configuration for by name."""
    module = type(config).__module__.replace("configuration_", "modeling_")
    source = inspect.getsource(sys.modules[module]) if module in sys.modules else ""
    return set(re.findall(r"getattr\(\s*(?:self\.)?config,\s*\"(\w+)\"", source)) - {"_attn_implementation"}


def other_values(key: str, value, kind: str) -> list:
    """Some other values of a key of this name, type and value."""
    found = [*SHARED.get(key, ()), *TEXTS.get(key, ()), *re.findall(r"'([\w-]+)'|\"([\w-]+)\"", kind if "Literal" in kind else "")]
    found = [next(filter(None, one), "") if isinstance(one, tuple) else one for one in found]
    if isinstance(value, bool) or (value is None and "bool" in kind):
        found += [False, True]
    elif isinstance(value, int) or (value is None and "int" in kind and "list" not in kind):
        found += [value + 1, 2 * value, max(1, value // 2), 0, None] if value is not None else [1, 2, 4]
    elif isinstance(value, float) or (value is None and "float" in kind and "list" not in kind):
        found += [1.5 * value + 0.25, value / 3, 0.0, None] if value is not None else [0.5, 2.0]
    elif isinstance(value, str):
        found += ACTIVATIONS if value in ACT2FN else ("other",)
    elif isinstance(value, list) and value and all(type(one) in (int, float, bool) for one in value):
        found += [*rearranged(value), [one + 1 for one in value], value[:-1], [], None]
    elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        found += [*rearranged(value), *kinds_of_layers(key, value), value[:-1], None]
    elif key == "layer_types" or "list" in kind:
        found += [[]]
    unlike = []
    for one in found:
        if one is None and kind and "None" not in kind:
            continue  # which transformers refuses
        if type(one) is not type(value) or one != value:
            unlike += [] if any(type(one) is type(old) and one == old for old in unlike) else [one]
    return unlike[:MAX_VALUES]


def rearranged(value: list) -> list:
    """Lists of the same length with the same items: many of a list's readers take no other length. The reverse of `[a, b, a]` is itself."""
    distinct = list(dict.fromkeys(value))
    return [value[1:] + value[:1], *([one] * len(value) for one in distinct[:2] if len(distinct) > 1)]


def kinds_of_layers(key: str, value: list) -> list:
    """Layers of other kinds."""
    if not key.endswith("layer_types"):
        return []
    known = ("dense", "sparse") if {*value} & {"dense", "sparse"} else ("full_attention", "sliding_attention", "chunked_attention")
    return [[kind] * len(value) for kind in known]


def rotations(config, described: dict, prefix: str) -> Iterator[tuple[str, object]]:
    """Other rotations: whole descriptions under both keys, and single settings of the one that is there."""
    own = getattr(config, "rope_parameters", None)
    if own is None:
        yield f"{prefix}rope_scaling", {"type": "linear", "factor": 3.0}
        return
    for name, kind in (own if all(isinstance(kind, dict) for kind in own.values()) else {"": own}).items():
        path = f"{prefix}rope_parameters.{name}" if name else f"{prefix}rope_parameters"
        for key in {"rope_theta": 0, "partial_rotary_factor": 0, **kind}:
            if key != "rope_type" and "rope_parameters" in described:
                for new in other_values(key, kind.get(key), "float"):
                    yield f"{path}.{key}", new
        theta = {"rope_theta": kind.get("rope_theta", 100.0)}
        for rotation in ROTATIONS:
            yield path, {**theta, **rotation}
    if "" not in own and not all(isinstance(kind, dict) for kind in own.values()):
        for rotation in ROTATIONS:
            yield f"{prefix}rope_scaling", rotation


def without(described: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Each key that is left out, for which transformers then takes its class's default."""
    for key, value in described.items():
        if key in SECTIONS and isinstance(value, dict):
            yield from without(value, f"{prefix}{key}.")
        elif key not in SKIPPED:
            yield f"{prefix}{key}", ABSENT


def changed(described: dict, path: str, value) -> dict:
    """The contents with another value at a path, or without it."""
    outer, _, inner = path.partition(".")
    below = described.get(outer)
    if value == ABSENT and not inner:
        return {key: old for key, old in described.items() if key != outer}
    return {**described, outer: changed(below if isinstance(below, dict) else {}, inner, value) if inner else value}
