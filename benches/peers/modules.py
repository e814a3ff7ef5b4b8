"""The measured layers in plain PyTorch, in the form that runs fastest in PyTorch and its exporters.

Queries, keys and values come from one product; attention is `scaled_dot_product_attention`. The weights are read from a
checkpoint as transformers writes it, and the results are compared with transformers' own by the driver.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Weights:
    """A checkpoint's tensors by name, with any prefix."""

    def __init__(self, directory: Path):
        from safetensors.torch import load_file  # not needed for random weights

        self.config = json.loads((directory / "config.json").read_text())
        self.tensors = load_file(directory / "model.safetensors")

    def get(self, name: str) -> Tensor:
        for prefix in ("", "bert.", "transformer.", "model."):
            if prefix + name in self.tensors:
                return self.tensors[prefix + name].float()
        raise KeyError(f"{name} is not in the checkpoint")

    def words(self) -> Tensor:
        """Returns a decoder's token embeddings, which are tied to its head."""
        return self.get("wte.weight" if self.config["model_type"] == "gpt2" else "embed_tokens.weight")

    def linear(self, *names: str, bias: bool = True) -> nn.Linear:
        """Returns one layer, or several concatenated."""
        weight = torch.cat([self.get(f"{name}.weight") for name in names])
        return linear(weight, torch.cat([self.get(f"{name}.bias") for name in names]) if bias else None)

    def conv1d(self, name: str) -> nn.Linear:
        """Returns GPT-2's layer, whose weight is stored transposed."""
        return linear(self.get(f"{name}.weight").t().contiguous(), self.get(f"{name}.bias"))

    def layer_norm(self, name: str, eps: float) -> nn.LayerNorm:
        weight = self.get(f"{name}.weight")
        norm = nn.LayerNorm(len(weight), eps=eps)
        norm.weight, norm.bias = parameter(weight), parameter(self.get(f"{name}.bias"))
        return norm

    def rms_norm(self, name: str, eps: float) -> nn.RMSNorm:
        weight = self.get(f"{name}.weight")
        norm = nn.RMSNorm(len(weight), eps=eps)
        norm.weight = parameter(weight)
        return norm


def parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.clone(), requires_grad=False)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = parameter(weight)
    layer.bias = None if bias is None else parameter(bias)
    return layer


class BertFeedForward(nn.Module):
    """`norm(x + down(gelu(up(x))))`."""

    def __init__(self, weights: Weights, layer: int = 0):
        super().__init__()
        name = f"encoder.layer.{layer}."
        self.up = weights.linear(name + "intermediate.dense")
        self.down = weights.linear(name + "output.dense")
        self.norm = weights.layer_norm(name + "output.LayerNorm", weights.config["layer_norm_eps"])
        self.dropout = nn.Dropout(weights.config["hidden_dropout_prob"])

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Projections(nn.Module):
    """Query, key and value [batch, n_heads, seq, head_dim] from one product."""

    def __init__(self, qkv: nn.Linear, n_heads: int):
        super().__init__()
        self.qkv, self.n_heads = qkv, n_heads

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, seq, d_model = x.shape
        qkv = self.qkv(x).view(batch, seq, 3, self.n_heads, d_model // self.n_heads)
        return qkv.permute(2, 0, 3, 1, 4).unbind(0)


class BertBlock(nn.Module):
    def __init__(self, weights: Weights, layer: int):
        super().__init__()
        name = f"encoder.layer.{layer}.attention."
        qkv = weights.linear(*(f"{name}self.{part}" for part in ("query", "key", "value")))
        self.project = Projections(qkv, weights.config["num_attention_heads"])
        self.attention_dropout = weights.config["attention_probs_dropout_prob"]
        self.output = weights.linear(name + "output.dense")
        self.norm = weights.layer_norm(name + "output.LayerNorm", weights.config["layer_norm_eps"])
        self.dropout = nn.Dropout(weights.config["hidden_dropout_prob"])
        self.feed_forward = BertFeedForward(weights, layer)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = self.project(x)
        dropout = self.attention_dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        attended = attended.transpose(1, 2).reshape(x.shape)
        return self.feed_forward(self.norm(x + self.dropout(self.output(attended))))


class BertEncoder(nn.Module):
    def __init__(self, weights: Weights):
        super().__init__()
        self.blocks = nn.ModuleList(BertBlock(weights, i) for i in range(weights.config["num_hidden_layers"]))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` [batch, 1, 1, seq], true = keep."""
        for block in self.blocks:
            x = block(x, mask)
        return x


class Gpt2Block(nn.Module):
    def __init__(self, weights: Weights, layer: int):
        super().__init__()
        name, eps = f"h.{layer}.", weights.config["layer_norm_epsilon"]
        self.n_heads = self.n_kv_heads = weights.config["n_head"]
        self.attention_norm = weights.layer_norm(name + "ln_1", eps)
        self.qkv, self.output = weights.conv1d(name + "attn.c_attn"), weights.conv1d(name + "attn.c_proj")
        self.feed_forward_norm = weights.layer_norm(name + "ln_2", eps)
        self.up, self.down = weights.conv1d(name + "mlp.c_fc"), weights.conv1d(name + "mlp.c_proj")
        self.attention_dropout = weights.config["attn_pdrop"]
        self.dropout = nn.Dropout(weights.config["resid_pdrop"])

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, weights: Weights, layer: int):
        super().__init__()
        name, eps = f"layers.{layer}.", weights.config["rms_norm_eps"]
        self.n_heads = weights.config["num_attention_heads"]
        self.n_kv_heads = weights.config["num_key_value_heads"]
        self.attention_norm = weights.rms_norm(name + "input_layernorm", eps)
        self.qkv = weights.linear(*(f"{name}self_attn.{part}_proj" for part in "qkv"), bias=False)
        self.output = weights.linear(name + "self_attn.o_proj", bias=False)
        self.feed_forward_norm = weights.rms_norm(name + "post_attention_layernorm", eps)
        self.gate_up = weights.linear(name + "mlp.gate_proj", name + "mlp.up_proj", bias=False)
        self.down = weights.linear(name + "mlp.down_proj", bias=False)
        self.attention_dropout, self.dropout = 0.0, nn.Identity()

    def feed_forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Blocks with a cache, and the final norm."""

    def __init__(self, weights: Weights, context: int):
        super().__init__()
        config = weights.config
        if config["model_type"] == "gpt2":
            self.blocks = nn.ModuleList(Gpt2Block(weights, i) for i in range(config["n_layer"]))
            self.final_norm = weights.layer_norm("ln_f", config["layer_norm_epsilon"])
            self.rotary = False
        else:
            self.blocks = nn.ModuleList(LlamaBlock(weights, i) for i in range(config["num_hidden_layers"]))
            self.final_norm = weights.rms_norm("norm", config["rms_norm_eps"])
            self.rotary = True
            cos, sin = rotary_tables(config, context + 1)
            self.register_buffer("cos", torch.cat([cos, cos], dim=-1))
            self.register_buffer("sin", torch.cat([sin, sin], dim=-1))

    def forward(self, x: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Returns the output, then every layer's keys and values at the new positions.

        `past` holds for every layer keys and values [batch, n_kv_heads, seen, head_dim], or nothing.
        """
        seen = past[0].shape[2] if past else 0
        new = []
        for i, block in enumerate(self.blocks):
            query, key, value = self.project(block, x, seen)
            new += [key, value]
            if past:
                key = torch.cat([past[2 * i], key], dim=2)
                value = torch.cat([past[2 * i + 1], value], dim=2)
            x = self.finish(block, x, self.attend(block, query, key, value, is_causal=not past))
        return (self.final_norm(x), *new)

    def step_in_place(self, x: Tensor, position: int, *buffers: Tensor) -> Tensor:
        """Computes one position. The buffers for keys and values have space for this position only."""
        for i, block in enumerate(self.blocks):
            query, key, value = self.project(block, x, position)
            keys, values = buffers[2 * i], buffers[2 * i + 1]
            keys[:, :, position : position + 1].copy_(key)
            values[:, :, position : position + 1].copy_(value)
            x = self.finish(block, x, self.attend(block, query, keys, values, is_causal=False))
        return self.final_norm(x)

    def project(self, block, x: Tensor, seen: int) -> tuple[Tensor, Tensor, Tensor]:
        batch, seq, d_model = x.shape
        n, n_kv, head_dim = block.n_heads, block.n_kv_heads, d_model // block.n_heads
        qkv = block.qkv(block.attention_norm(x)).view(batch, seq, n + 2 * n_kv, head_dim).transpose(1, 2)
        query, key, value = qkv.split([n, n_kv, n_kv], dim=1)
        if self.rotary:
            query, key = self.rotate(query, seen), self.rotate(key, seen)
        return query, key, value

    def rotate(self, x: Tensor, seen: int) -> Tensor:
        cos, sin = (table[seen : seen + x.shape[2]] for table in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    @staticmethod
    def attend(block, query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> Tensor:
        grouped = block.n_kv_heads != block.n_heads
        dropout = block.attention_dropout if block.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=is_causal, enable_gqa=grouped)
        return y.transpose(1, 2).flatten(2)

    @staticmethod
    def finish(block, x: Tensor, attended: Tensor) -> Tensor:
        x = x + block.dropout(block.output(attended))
        return x + block.dropout(block.feed_forward(block.feed_forward_norm(x)))


def positions(config: dict) -> int:
    """Returns a decoder's maximum number of positions."""
    return config["n_positions"] if config["model_type"] == "gpt2" else config["max_position_embeddings"]


def rotary_base(config: dict) -> float:
    parameters = config.get("rope_parameters") or config
    return parameters.get("rope_theta", 10000.0)


def rotary_tables(config: dict, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, head_dim / 2]."""
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    frequencies = rotary_base(config) ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def build(op: str, directory: Path, context: int) -> nn.Module:
    weights = Weights(directory)
    if op == "feed_forward":
        return BertFeedForward(weights).eval()
    if weights.config["model_type"] == "bert":
        return BertEncoder(weights).eval()
    return Decoder(weights, context).eval()
