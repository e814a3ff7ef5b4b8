"""Saves a module of one's own with what PyTorch computes for it, for a test in Rust: docs/own-block.md.

    python weights/own_module.py [DIR]

Writes feed_forward.safetensors (the weights) and fixture.safetensors (input, output and gradients).
"""

import copy
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import gelu, linear


class FeedForward(nn.Module):
    """x + W2·gelu(W1·norm(x) + b1) + b2"""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=1e-5)
        self.W1 = nn.Parameter(torch.randn(d_ff, d_model) / d_model**0.5)
        self.b1 = nn.Parameter(torch.randn(d_ff))
        self.W2 = nn.Parameter(torch.randn(d_model, d_ff) / d_ff**0.5)
        self.b2 = nn.Parameter(torch.randn(d_model))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + linear(gelu(linear(self.norm(x), self.W1, self.b1)), self.W2, self.b2)


def results(module: nn.Module, x: torch.Tensor, grad_output: torch.Tensor) -> dict[str, torch.Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    module, x = copy.deepcopy(module).to(x.dtype), x.clone().requires_grad_()
    output = module(x)
    output.backward(grad_output)
    gradients = {f"grads.{name}": parameter.grad for name, parameter in module.named_parameters()}
    return {"layers.0.output": output.detach(), "grads.hidden_states": x.grad, **gradients}


def write(directory: Path) -> None:
    """Writes both files."""
    torch.manual_seed(0)
    module = FeedForward(d_model=24, d_ff=52)
    nn.init.normal_(module.norm.weight, 1.0, 0.2)  # a fresh norm, 1 and 0, would hide a norm that is left out
    nn.init.normal_(module.norm.bias, 0.0, 0.2)
    x, grad_output = torch.randn(2, 5, 24), torch.randn(2, 5, 24)

    fixture = {"hidden_states": x, "grad_output": grad_output, **results(module, x, grad_output)}
    for name, value in results(module, x.double(), grad_output.double()).items():
        fixture[f"{name}.f64"] = value  # the same in float64: what the errors of both libraries are measured from
    directory.mkdir(parents=True, exist_ok=True)
    save_file(module.state_dict(), directory / "feed_forward.safetensors")
    save_file(fixture, directory / "fixture.safetensors", metadata={"format_version": "1"})


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "weights/own-module"))
