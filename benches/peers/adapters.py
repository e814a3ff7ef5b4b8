"""Low-rank adapters (LoRA) in plain PyTorch, equal to PEFT's."""

import json

from safetensors import safe_open
from torch import Tensor, nn

import modules


class Adapted(nn.Module):
    """`W x + b + scale * B A dropout(x)`, where A and B are trained."""

    def __init__(self, base: nn.Linear, a: Tensor, b: Tensor, config: dict):
        super().__init__()
        self.base = base
        self.a = modules.linear(a, None).requires_grad_()
        self.b = modules.linear(b, None).requires_grad_()
        self.dropout = nn.Dropout(config["dropout"])
        self.scale = config["alpha"] / config["rank"]

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(self.dropout(x))) * self.scale


class Projections(nn.Module):
    """Query, key and value [batch, n_heads, seq, head_dim], each from a separate product."""

    def __init__(self, parts: list[nn.Module], n_heads: int):
        super().__init__()
        self.parts, self.n_heads = nn.ModuleList(parts), n_heads

    def forward(self, x: Tensor) -> list[Tensor]:
        return [part(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in self.parts]


def attach(network: modules.BertEncoder, path: str):
    """Adds a file's adapters to the network, whose weights are frozen."""
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["lora"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    for i, block in enumerate(network.blocks):
        qkv = block.project.qkv
        parts = []
        for role, weight, bias in zip(("query", "key", "value"), qkv.weight.chunk(3), qkv.bias.chunk(3)):
            part = modules.linear(weight, bias)
            target = f"attention.{role}"
            if target in config["targets"]:
                a, b = (tensors[f"blocks.{i}.{target}.lora_{factor}.weight"] for factor in "ab")
                part = Adapted(part, a, b, config)
            parts.append(part)
        block.project = Projections(parts, block.project.n_heads)
