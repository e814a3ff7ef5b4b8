"""Checkpoints with seeded random weights, their inputs, and transformers' results in float64."""

import gc
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM

import spread
import training
import whole
from cases import CONTEXT, Case, Model

STACK_VOCABULARY = 32  # a stack has no embeddings; keeps files small


def write_checkpoint(model: Model, folder: Path) -> Path:
    """Writes a directory like `save_pretrained`, with weights as spread out as in a trained model."""
    if model.directory is not None:
        return model.directory.resolve()
    if not (folder / "model.safetensors").exists():
        network = build(model)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.dim() == 1:  # norm weights of 1 and biases of 0 would hide mistakes
                    # With larger biases a whole model would choose one token all the time, for any prompt.
                    noise = 0.02 if model.is_whole else 0.1
                    parameter += noise * torch.randn(parameter.shape, generator=generator)
                elif model.on_grid:
                    parameter.copy_(on_grid(parameter))
        network.save_pretrained(folder)
    return folder


def on_grid(weight: torch.Tensor) -> torch.Tensor:
    """Rounds each group of 128 terms to the 16 steps from -8 to 7 times an f16 scale, and includes both ends: every
    quantizer with such steps reproduces the values."""
    groups = weight.reshape(-1, 128)
    largest, _ = groups.abs().max(dim=1, keepdim=True)
    step = (largest / 8).clamp_min(2**-14).to(torch.float16).float()  # padding rows are zeros
    steps = (groups / step).round().clamp(-8, 7)
    for end, at in ((-8.0, groups.argmin(dim=1)), (7.0, groups.argmax(dim=1))):
        steps.scatter_(1, at[:, None], end)
    return (steps * step).reshape(weight.shape)


def build(model: Model):
    torch.manual_seed(0)
    common = {"vocab_size": model.vocabulary or STACK_VOCABULARY, "initializer_range": model.spread}
    if model.is_whole:  # no token ends a generation
        common |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    if model.family == "bert":
        return BertModel(BertConfig(
            **common, hidden_size=model.d_model, num_hidden_layers=model.n_layers,
            num_attention_heads=model.n_heads, intermediate_size=model.d_ff,
        ), add_pooling_layer=False)
    if model.family == "gpt2":
        return (GPT2LMHeadModel if model.is_whole else GPT2Model)(GPT2Config(
            **common, n_embd=model.d_model, n_layer=model.n_layers, n_head=model.n_heads,
            n_inner=model.d_ff, n_positions=2 * CONTEXT,
        ))
    # With the head, because candle-transformers' Llama returns only logits.
    return LlamaForCausalLM(LlamaConfig(
        **common, hidden_size=model.d_model, intermediate_size=model.d_ff,
        num_hidden_layers=model.n_layers, num_attention_heads=model.n_heads,
        num_key_value_heads=model.n_kv_heads, max_position_embeddings=2 * CONTEXT, tie_word_embeddings=model.is_whole,
    ))


def write_input(case: Case, d_model: int, path: Path) -> dict[str, torch.Tensor]:
    """Writes `hidden_states` [batch, seq, d_model], and `attention_mask` [batch, seq] for a padded batch, `step` for
    a step, or `target` with the hidden states' shape for training."""
    generator = torch.Generator().manual_seed(2)
    tensors = {"hidden_states": torch.randn(case.batch, case.seq, d_model, generator=generator)}
    if case.variant == "padded":
        # Right padding with one full sequence, like a tokenizer's.
        lengths = torch.randint(case.seq // 4, case.seq + 1, (case.batch,), generator=generator)
        lengths[0] = case.seq
        tensors["attention_mask"] = (torch.arange(case.seq) < lengths[:, None]).long()
    if case.op == "step":
        tensors["step"] = torch.randn(case.batch, 1, d_model, generator=generator)
    if case.op == "train_step":
        tensors["target"] = torch.randn(tensors["hidden_states"].shape, generator=generator)
    save_file(tensors, path)
    return tensors


class Reference:
    """transformers' own forward pass in float64. Keeps the last case's model."""

    def __init__(self):
        self.source, self.network = None, None

    @torch.no_grad()
    def output(self, case: Case, family: str, directory: Path, inputs: dict[str, torch.Tensor], task: dict) -> dict:
        """Returns `output`; for Llama also the last position's logits; for training the result of `training.losses`;
        for a generation a judge for its tokens, in f32 (in float64 half a billion parameters would take 4 GB)."""
        if case.op == "texts":
            return {"output": whole.vectors(directory, inputs["texts"])}
        source = task.get("file", directory)
        if self.source != source:
            self.network = None
            gc.collect()
            kind = {"bert": BertModel, "gpt2": GPT2Model, "llama": LlamaForCausalLM}[family]
            options = {"add_pooling_layer": False} if family == "bert" else {}
            if case.op == "generation":
                kind = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM}[family]
            options["dtype"] = torch.float32 if case.op == "generation" else torch.float64
            if "file" in task:
                options["gguf_file"] = Path(source).name
                directory = Path(source).parent
            self.network = kind.from_pretrained(directory, attn_implementation="sdpa", **options).eval()
            self.source = source
        if case.op == "generation":
            return {"likeliest": whole.Likeliest(self.network, inputs["input_ids"])}
        if case.op == "train_step":
            return training.losses(self.network, family, inputs, task["training"])
        x = inputs["hidden_states"].double()
        if case.op == "feed_forward":
            layer = self.network.encoder.layer[0]
            return {"output": layer.output(layer.intermediate(x), x)}
        if case.op == "encoder":
            mask = inputs.get("attention_mask")
            mask = None if mask is None else mask[:, None, None, :].bool()
            return {"output": self.network.encoder(x, attention_mask=mask).last_hidden_state}
        if case.op == "step":
            x = torch.cat([x, inputs["step"].double()], dim=1)
        if family == "gpt2":
            self.network.wpe.weight.zero_()  # a stack's input includes positions
            output = self.network(inputs_embeds=x, use_cache=False).last_hidden_state
            logits = {}
        else:
            output = self.network.model(inputs_embeds=x, use_cache=False).last_hidden_state
            logits = {"last_logits": self.network.lm_head(output[:, -1])}
        if case.op == "step":
            output = output[:, -1:]
        return {"output": output} | logits


def deviations(tolerance: float, reference: dict, inputs: dict, path: Path) -> list[tuple[float, float]]:
    """Returns pairs of a worker's error and the allowed error: root mean square divided by the reference's; then, for
    losses with dropout, which follow the losses without, the distance between their mean and PyTorch's."""
    name, y = next(iter(load_file(path).items()))
    if "likeliest" in reference:
        return [(reference["likeliest"].gap(y), tolerance)]
    expected = reference[name]
    if "with_dropout" not in reference:
        return [(relative_error(y, expected, inputs), tolerance)]
    plain, dropping = y[: len(expected)], y[len(expected) :]
    of_mean = spread.of_mean(dropping.tolist(), reference["with_dropout"])
    return [(relative_error(plain, expected, inputs), tolerance), of_mean]


def relative_error(y: torch.Tensor, expected: torch.Tensor, inputs: dict) -> float:
    """Returns infinity if shapes differ."""
    if y.shape != expected.shape:
        return float("inf")
    error = y.double() - expected
    if "attention_mask" in inputs:  # results in padding rows do not matter
        keep = inputs["attention_mask"].bool()
        error, expected = error[keep], expected[keep]
    ratio = error.square().mean().sqrt() / expected.square().mean().sqrt()
    return float("inf") if ratio.isnan() else ratio.item()
