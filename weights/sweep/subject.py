"""A small model that transformers and the program both run."""

import copy
import functools
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from fixtures import checkpoint, hub_config, tensor_file, whole
from fixtures.families import Drive, family_of

SEED, BATCH, SEQ = 3, 2, 7
# Of the largest value.
TOLERANCE = 2e-4
# What both name alike.
COMPARED = ("last_hidden_state", "pooler_output", "encoder_last_hidden_state", "logits", "logits_per_image", "text_embeds", "image_embeds")
SECONDS = 30


class Failed(Exception):
    """transformers does not read the configuration, or cannot run it."""


@dataclass
class Subject:
    """A class of transformers, and the program."""

    model_type: str
    name: str  # of the class
    program: Path
    written: object = None  # the shapes and sums of the weights that lie in the folder

    def described(self, names: str) -> dict:
        """A config.json, in the names of this kind."""
        family = family_of(self.model_type)
        # Of SigLIP's towers, the one as wide as the other.
        wide = {"text_config.projection_size": family.sizes["vision_config"]["hidden_size"]} if self.model_type == "siglip" else {}
        config = transformers.AutoConfig.for_model(self.model_type, **checkpoint.with_overrides(family.sizes, wide))
        layout = checkpoint.Layout(head="" if self.name == "AutoModel" else self.name, prefix="bare" if self.name == "AutoModel" else "hub")
        model = checkpoint.make(config, family, layout)
        described = hub_config.describe(model.config, family, names)
        return {**described, "architectures": [type(model).__name__]}

    def judged(self, folder: Path, described: dict, inputs: dict | None) -> "Judge":
        """Writes the checkpoint to `folder`; what transformers makes of it, and the inputs."""
        (folder / "config.json").write_text(json.dumps(described))
        try:
            config = hub_config.read(folder)
            config._attn_implementation = config._experts_implementation = "eager"
            (name,) = described["architectures"]
            model = getattr(transformers, name)(config).eval()
            checkpoint.randomise(model, SEED)
            shapes = {name: (tensor.shape, tensor.sum().item()) for name, tensor in model.named_parameters()}
            if shapes != self.written:
                checkpoint.write_weights(folder, checkpoint.disk_tensors(model, checkpoint.Layout()), 1)
                self.written = shapes
            part = whole.part_of(model)
            if inputs is not None:
                try:
                    return Judge(model, part, inputs)
                except Exception:  # other words or places: with inputs that fit
                    pass
            return Judge(model, part, inputs_of(model, part))
        except (Exception, SystemExit) as error:
            raise Failed(f"{type(error).__name__}: {error}".split("\n")[0][:200]) from None

    def ours(self, folder: Path, inputs: dict) -> tuple[dict | None, str]:
        """What the program makes of the checkpoint, and what it says."""
        tensor_file.write(folder / "input.safetensors", inputs, {})
        command = [self.program, "run", "--model", folder, "--input", folder / "input.safetensors", "--output", folder / "output.safetensors"]
        (folder / "output.safetensors").unlink(missing_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            return None, done.stderr.strip()
        seen = tensor_file.read(folder / "output.safetensors")
        kept = inputs.get("attention_mask")
        return {name: rows(tensor, kept) for name, tensor in seen.items() if name in COMPARED}, done.stderr.strip()


class Judge:
    """What transformers computes, by attention composed of single operations and, where it is asked, by the fused one."""

    def __init__(self, model: torch.nn.Module, part, inputs: dict):
        self.model, self.part, self.inputs = model, part, inputs
        self.composed = self.seen()

    @torch.no_grad()
    def seen(self) -> dict:
        kept = self.inputs.get("attention_mask")
        seen = whole.outputs_of(self.model, self.part, self.inputs)
        return {name: rows(tensor, kept) for name, tensor in seen.items() if name in COMPARED}

    @functools.cached_property
    def fused(self) -> dict:
        config = copy.deepcopy(self.model.config)
        try:
            config._attn_implementation = "sdpa"
            self.model = type(self.model)(config).eval()
            checkpoint.randomise(self.model, SEED)
            return self.seen()
        except Exception:  # the class has none
            return self.composed


def inputs_of(model: torch.nn.Module, part) -> dict:
    """Ids, pixels or sounds that fit the model."""
    image = None
    if part.drive is Drive.SHAPED:
        side = int(model.config.num_patches**0.5)
        image = ((side - 1) * model.config.patch_size, (side + 2) * model.config.patch_size)
    if part.drive is Drive.PATCHES:
        side = model.config.patch_size * model.config.spatial_merge_size
        image = (2 * side, 3 * side)
    batch = 1 if part.drive is Drive.PATCHES else BATCH
    return whole.inputs_of(model, part, batch, SEQ, part.padding, SEED, image)


def rows(tensor: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """Those that the mask keeps."""
    tensor = tensor.detach().double()
    return tensor[kept.bool()] if kept is not None and tensor.shape[:2] == kept.shape else tensor


def differ(one: dict, other: dict) -> float | None:
    """How far two results are apart, of the largest value; `None` if one lacks what the other has, or has other shapes."""
    if not one.keys() >= other.keys():
        return None
    worst = 0.0
    for name, tensor in other.items():
        if one[name].shape != tensor.shape:
            return None
        both = torch.isnan(one[name]) & torch.isnan(tensor)
        apart = (one[name] - tensor).masked_fill(both, 0.0).abs().max().item() if tensor.numel() else 0.0
        scale = max(tensor.nan_to_num().abs().max().item(), 1e-3) if tensor.numel() else 1.0
        worst = max(worst, float("inf") if apart != apart else apart / scale)
    return worst


def same(one: dict, other: dict) -> bool:
    apart = differ(one, other)
    return apart is not None and apart <= TOLERANCE


def scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="sweep")
