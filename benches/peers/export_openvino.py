"""Whole models as OpenVINO files. In a decoder keys and values are states, for the GenAI package."""

import json
from pathlib import Path

import numpy as np
import openvino as ov
import torch
import torch.nn.functional as F
from openvino import opset13 as op
from openvino._offline_transformations import apply_make_stateful_transformation
from torch import Tensor, nn

import modules


def write(weights: modules.Weights, folder: Path, is_int4: bool = False):
    if weights.config["model_type"] == "bert":
        model = texts(weights)
    else:
        model = generation(weights)
        (folder / "config.json").write_text(json.dumps(weights.config))
    if is_int4:
        import nncf

        # Position tables are narrower than a group.
        others = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.IGNORE)
        model = nncf.compress_weights(
            model, mode=nncf.CompressWeightsMode.INT4_SYM, group_size=128, all_layers=True, advanced_parameters=others
        )
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)


class Bert(nn.Module):
    """BERT from tokens to hidden states."""

    def __init__(self, weights: modules.Weights):
        super().__init__()
        names = ("word", "position", "token_type")
        self.words, self.places, self.types = (modules.parameter(weights.get(f"embeddings.{name}_embeddings.weight")) for name in names)
        self.norm = weights.layer_norm("embeddings.LayerNorm", weights.config["layer_norm_eps"])
        self.encoder = modules.BertEncoder(weights)

    def forward(self, ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        x = F.embedding(ids, self.words) + self.places[: ids.shape[1]] + F.embedding(types, self.types)
        return self.encoder(self.norm(x), mask[:, None, None, :].bool())


def texts(weights: modules.Weights) -> ov.Model:
    example = tuple(torch.ones(2, 8, dtype=torch.int32) for _ in range(3))
    with torch.no_grad():
        return ov.convert_model(Bert(weights).eval(), example_input=example)


class CausalLm(nn.Module):
    """A decoder from tokens and earlier keys and values to logits, and all keys and values."""

    def __init__(self, weights: modules.Weights):
        super().__init__()
        self.decoder = modules.Decoder(weights, modules.positions(weights.config))
        self.words = modules.parameter(weights.words())
        self.places = None if self.decoder.rotary else modules.parameter(weights.get("wpe.weight"))

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x = F.embedding(ids, self.words)
        if self.places is not None:
            x = x + F.embedding(positions, self.places)
        keys = torch.arange(past[0].shape[2] + ids.shape[1])
        queries = keys[past[0].shape[2] :]
        seen = (keys[None, :] <= queries[:, None])[None, None] & mask[:, None, None, :].bool()
        bias = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        present = []
        for i, block in enumerate(self.decoder.blocks):
            query, key, value = self.project(block, x, positions)
            key, value = torch.cat([past[2 * i], key], dim=2), torch.cat([past[2 * i + 1], value], dim=2)
            present += [key, value]
            key, value = (self.repeated(tensor, block) for tensor in (key, value))
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
            x = self.decoder.finish(block, x, attended.transpose(1, 2).flatten(2))
        return (F.linear(self.decoder.final_norm(x), self.words), *present)

    def project(self, block, x: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        batch, seq, d_model = x.shape
        n, n_kv, head_dim = block.n_heads, block.n_kv_heads, d_model // block.n_heads
        parts = block.qkv(block.attention_norm(x)).split([n * head_dim, n_kv * head_dim, n_kv * head_dim], dim=-1)
        query, key, value = (part.view(batch, seq, -1, head_dim).transpose(1, 2) for part in parts)
        if self.decoder.rotary:
            query, key = self.rotate(query, positions), self.rotate(key, positions)
        return query, key, value

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        cos, sin = (F.embedding(positions, table)[:, None] for table in (self.decoder.cos, self.decoder.sin))
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    @staticmethod
    def repeated(x: Tensor, block) -> Tensor:
        """Repeats each key or value head for its query heads."""
        if block.n_heads == block.n_kv_heads:
            return x
        batch, n_kv, seq, head_dim = x.shape
        return x[:, :, None].expand(batch, n_kv, block.n_heads // n_kv, seq, head_dim).reshape(batch, -1, seq, head_dim)


def generation(weights: modules.Weights) -> ov.Model:
    network = CausalLm(weights).eval()
    block = network.decoder.blocks[0]
    n_kv, head_dim, n_layers = block.n_kv_heads, block.qkv.in_features // block.n_heads, len(network.decoder.blocks)
    tokens = [torch.ones(2, length, dtype=torch.long) for length in (4, 7, 4)]
    with torch.no_grad():
        model = ov.convert_model(network, example_input=(*tokens, *(torch.zeros(2, n_kv, 3, head_dim) for _ in range(2 * n_layers))))
    parts = [f"{i}.{part}" for i in range(n_layers) for part in ("key", "value")]
    names = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{part}" for part in parts)]
    for port, name in zip(model.inputs, names):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)  # GenAI looks for this name
        port.get_node().set_partial_shape(ov.PartialShape([-1, -1] if "past" not in name else [-1, n_kv, -1, head_dim]))
    for port, name in zip(model.outputs, ["logits", *(f"present.{part}" for part in parts)]):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()
    make_stateful(model, parts, n_kv, head_dim)
    return model


def make_stateful(model: ov.Model, parts: list[str], n_kv: int, head_dim: int):
    """Turns keys and values into states, initially empty, whose sequences `beam_idx` selects."""
    picked = op.parameter([-1], ov.Type.i32, name="beam_idx")
    picked.output(0).get_tensor().set_names({"beam_idx"})
    model.add_parameters([picked])
    for part in parts:
        past = model.input(f"past_key_values.{part}")
        users = list(past.get_target_inputs())
        gathered = op.gather(past, picked, op.constant(np.int64(0)))
        for user in users:
            user.replace_source_output(gathered.output(0))
    apply_make_stateful_transformation(model, {f"past_key_values.{part}": f"present.{part}" for part in parts})
    batch = op.gather(op.shape_of(model.input("input_ids"), output_type="i64"), op.constant(np.array([0])), op.constant(0))
    rest = op.constant(np.array([n_kv, 0, head_dim], dtype=np.int64))
    empty = op.broadcast(op.constant(np.float32(0)), op.concat([batch, rest], axis=0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([empty.output(0)])
    model.validate_nodes_and_infer_types()
