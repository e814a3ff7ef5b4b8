"""The settings for a training, and PyTorch's losses: transformers' modules, and adapters from PEFT."""

import copy
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from cases import DROPOUT_STEPS, LEARNING_RATE, LORA, LORA_LEARNING_RATE, PLAIN_STEPS, WEIGHT_DECAY, Case
from spread import SEEDS


def task(case: Case, config: dict, folder: Path) -> dict:
    """Returns a worker's settings: the training's hyperparameters, and the file with its initial adapters, if any."""
    adapters = None
    if case.variant == "lora":
        adapters = folder / "adapters.safetensors"
        write_adapters(config["hidden_size"], config["num_hidden_layers"], adapters)
    return {
        "learning_rate": LORA_LEARNING_RATE if case.variant == "lora" else LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
        "plain_steps": PLAIN_STEPS,
        "dropout_steps": DROPOUT_STEPS if case.drops else 0,
        "adapters": adapters and str(adapters),
    }


def write_adapters(d_model: int, n_layers: int, path: Path):
    """Writes adapters like `Lora::save`. No matrix is zero, unlike a new `B`, which would hide a wrong scale."""
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for layer in range(n_layers):
        for target in LORA["targets"]:
            name = f"blocks.{layer}.{target}"
            uniform = torch.rand(LORA["rank"], d_model, generator=generator)
            tensors[f"{name}.lora_a.weight"] = (2 * uniform - 1) / d_model**0.5
            tensors[f"{name}.lora_b.weight"] = 0.1 * torch.randn(d_model, LORA["rank"], generator=generator)
    save_file(tensors, path, metadata={"lora": json.dumps(LORA)})


@torch.no_grad()
def losses(network, family: str, inputs: dict, task: dict) -> dict:
    """Returns the first steps' losses without dropout in float64 as `output`, [plain_steps], and if steps with
    dropout follow, `with_dropout`: their mean loss in f32 for each seed. Restores the network."""
    plain = Training(network, family, inputs, task, torch.float64)
    found = {"output": plain.losses(task["plain_steps"], dropout=False)}
    if task["dropout_steps"]:
        means = []
        for seed in SEEDS:
            dropping = Training(network, family, inputs, task, torch.float32)
            dropping.losses(task["plain_steps"], dropout=False)
            torch.manual_seed(seed)
            means.append(dropping.losses(task["dropout_steps"], dropout=True).double().mean().item())
        found["with_dropout"] = means
    return found


class Training:
    """AdamW steps with a mean squared error loss, on a copy of transformers' network."""

    def __init__(self, network, family: str, inputs: dict, task: dict, dtype: torch.dtype):
        # Embeddings and heads are outside the stack: they are not computed, dropped or trained.
        network = copy.deepcopy(network)
        if task["adapters"]:
            network = with_adapters(network, Path(task["adapters"]))
        network.to(dtype)
        match family:
            case "bert":
                trained, stack = [network.encoder], lambda x: network.encoder(x)
            case "gpt2":
                network.wpe.weight.zero_()
                network.drop.p = 0.0
                trained, stack = [network.h, network.ln_f], lambda x: network(inputs_embeds=x, use_cache=False)
            case _:
                decoder = network.model
                trained = [decoder.layers, decoder.norm]
                stack = lambda x: decoder(inputs_embeds=x, use_cache=False)
        self.network, self.stack = network, stack
        self.x, self.target = inputs["hidden_states"].to(dtype), inputs["target"].to(dtype)
        parameters = [p for module in trained for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(parameters, lr=task["learning_rate"], weight_decay=task["weight_decay"])

    @torch.enable_grad()
    def losses(self, steps: int, dropout: bool) -> torch.Tensor:
        """Returns the losses for the next `steps`, [steps]."""
        self.network.train(dropout)
        found = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = (self.stack(self.x).last_hidden_state - self.target).square().mean()
            loss.backward()
            self.optimizer.step()
            found.append(loss.detach())
        return torch.stack(found)


def with_adapters(network, path: Path):
    """Returns a BERT with PEFT's adapters; only they are trained."""
    from peft import LoraConfig, get_peft_model

    modules = [target.removeprefix("attention.") for target in LORA["targets"]]
    config = LoraConfig(r=LORA["rank"], lora_alpha=LORA["alpha"], lora_dropout=LORA["dropout"], target_modules=modules)
    adapted = get_peft_model(network, config).base_model.model
    tensors = load_file(path)
    for i, layer in enumerate(adapted.encoder.layer):
        for target, module in zip(LORA["targets"], modules):
            linear = getattr(layer.attention.self, module)
            for factor, name in ((linear.lora_A, "lora_a"), (linear.lora_B, "lora_b")):
                factor["default"].weight.copy_(tensors[f"blocks.{i}.{target}.{name}.weight"])
    return adapted
