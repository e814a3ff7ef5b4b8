"""A small model that transformers and the program both run."""

import functools
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from fixtures import checkpoint, hub_config, tensor_file, whole
from fixtures.drive import blocks_of
from fixtures.families import Drive, family_of
from fixtures.inputs import padding_mask

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
    attention: str | None = None  # of the judge; without a name, the one that transformers chooses

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

    def judged(self, folder: Path, described: dict, inputs: dict | None, keeps_shapes: bool = False) -> "Judge":
        """Writes the checkpoint to `folder`; what transformers makes of these files, and the inputs. With `keeps_shapes`, no weights are
        written."""
        (folder / "config.json").write_text(json.dumps(described))
        try:
            config = hub_config.read(folder)
            config._attn_implementation = config._experts_implementation = "eager"
            (name,) = described["architectures"]
            if keeps_shapes:
                with torch.device("meta"):
                    shapes = {name: tensor.shape for name, tensor in getattr(transformers, name)(config).state_dict().items()}
                if shapes != {name: shape for name, (shape, _) in self.written.items()}:
                    raise Failed("other shapes")
            model = getattr(transformers, name)(config).eval()
            checkpoint.randomise(model, SEED)
            # Of buffers the shapes alone: those of a file count, also where its configuration would give others.
            trained = dict(model.named_parameters(remove_duplicate=False))
            shapes = {name: (tensor.shape, tensor.sum().item() if name in trained else None) for name, tensor in model.state_dict().items()}
            if shapes != self.written:
                checkpoint.write_weights(folder, checkpoint.disk_tensors(model, checkpoint.Layout()), 1)
                self.written = shapes
            load = functools.partial(loaded, type(model), folder)
            choose = functools.partial(load, self.attention)
            model = load("eager")
            part = whole.part_of(model)
            if part.drive is Drive.ROWS:
                return BlocksJudge(model, part, None, choose)
            if inputs is not None:
                try:
                    return Judge(model, part, inputs, choose)
                except Exception:  # other words or places: with inputs that fit
                    pass
            return Judge(model, part, inputs_of(model, part), choose)
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


def loaded(kind: type, folder: Path, attention: str | None) -> torch.nn.Module:
    """The model of the files, as a user loads it: buffers that a file holds count, whatever its configuration says. Without the name of
    an attention, with the one that transformers chooses."""
    options = {"attn_implementation": attention} if attention else {}
    model, info = kind.from_pretrained(
        folder, config=hub_config.read(folder), dtype=torch.float32, experts_implementation="eager", local_files_only=True, output_loading_info=True, **options
    )
    lacks = sorted(info["missing_keys"]) + sorted(info["mismatched_keys"])
    if lacks:
        raise Failed(f"the files lack {lacks}"[:200])
    return model.eval()


class Judge:
    """What transformers computes, by attention composed of single operations (eager), and by the attention that it chooses."""

    def __init__(self, model: torch.nn.Module, part, inputs: dict | None, choose):
        self.part, self.inputs, self.choose = part, inputs, choose
        self.composed = self.seen(model)

    @torch.no_grad()
    def seen(self, model: torch.nn.Module) -> dict:
        kept = self.inputs.get("attention_mask")
        seen = whole.outputs_of(model, self.part, self.inputs)
        return {name: rows(tensor, kept) for name, tensor in seen.items() if name in COMPARED}

    @functools.cached_property
    def usual(self) -> dict:
        model = self.choose()
        return self.composed if model.config._attn_implementation == "eager" else self.seen(model)


class BlocksJudge(Judge):
    """The same of the blocks alone: what enters the first is the input."""

    @torch.no_grad()
    def seen(self, model: torch.nn.Module) -> dict:
        runs = model.get_submodule(self.part.model)
        given = rows_of(runs)
        entered = []

        def keep(_, args, kwargs):
            entered.append(args[0] if args else kwargs["hidden_states"])

        left = []
        first, *_, last_block = [*blocks_of(model, self.part).values()] * 2
        handles = [first.register_forward_pre_hook(keep, with_kwargs=True), last_block.register_forward_hook(lambda _, __, result: left.append(result))]
        last = runs(**given).last_hidden_state
        for handle in handles:
            handle.remove()
        if hasattr(model, "avg_pooler"):  # behind the blocks, before the norm
            last = left[0] if torch.is_tensor(left[0]) else left[0][0]
        self.inputs = {"hidden_states": entered[0].detach().clone()}
        if "input_ids" in given and "pixel_values" not in given:
            self.inputs["attention_mask"] = given["attention_mask"]
        return {"last_hidden_state": rows(last, self.inputs.get("attention_mask"))}


def rows_of(model: torch.nn.Module) -> dict:
    """What a class reads whose embeddings are its own."""
    config, accepted = model.config, whole.accepted(model)
    draw = lambda *shape: torch.randn(*shape, generator=torch.Generator().manual_seed(SEED))
    if "states" in accepted:
        steps = torch.arange(2).expand(BATCH, 2)
        given = {"states": draw(BATCH, 2, config.state_dim), "actions": draw(BATCH, 2, config.act_dim), "timesteps": steps}
        return {**given, "rewards": draw(BATCH, 2, 1), "returns_to_go": draw(BATCH, 2, 1), "attention_mask": torch.ones(BATCH, 2)}
    if "hidden_states" in accepted and "input_ids" not in accepted:
        return {"hidden_states": draw(BATCH, SEQ, config.hidden_size)}
    if "flattened_patches" in accepted:
        places = torch.arange(SEQ).float().repeat(BATCH, 1)[..., None] % 3
        return {"flattened_patches": torch.cat([places, places, draw(BATCH, SEQ, config.patch_embed_hidden_size)], -1)}
    if "patch_embeds" in accepted:
        side = config.image_size // config.patch_size
        return {"patch_embeds": draw(BATCH, config.hidden_size, side, side)}
    if hasattr(config, "num_position_embeddings") and "pixel_values" in accepted:  # Molmo 2's, whose patches are rows
        return {"pixel_values": draw(BATCH, config.num_position_embeddings, 3 * config.patch_size**2)}
    if "input_features" in accepted:
        length = 2 * getattr(config, "max_source_positions", SEQ)
        given = {"input_features": draw(BATCH, config.num_mel_bins, length), "input_features_mask": torch.ones(BATCH, length, dtype=torch.long)}
        return {name: tensor for name, tensor in given.items() if name in accepted}
    if "input_values" in accepted:
        return {"input_values": draw(BATCH, config.max_length, config.num_mel_bins)}
    given = {}
    if "pixel_values" in accepted:
        size = [config.image_size] * 2 if isinstance(config.image_size, int) else config.image_size
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        given["pixel_values"] = draw(BATCH, *frames, getattr(config, "num_channels", 3), *size)
    if "input_ids" in accepted:
        codebooks = [config.num_codebooks] if "Backbone" in type(model).__name__ else []
        given["input_ids"] = torch.randint(3, config.vocab_size, (BATCH, SEQ, *codebooks), generator=torch.Generator().manual_seed(SEED))
        given["attention_mask"] = torch.ones(BATCH, SEQ, dtype=torch.long) if "pixel_values" in given else padding_mask(BATCH, SEQ, "right")
    return given


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
