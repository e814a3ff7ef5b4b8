"""Does each class that transformers has of a model type compute here what it computes there?

    python weights/sweep/classes.py PROGRAM [CLASS ...] [--out FILE]

Of each class below, transformers saves a small random model. It and `PROGRAM run` then read the same batches: rows of
different lengths with padding on either side, with a mask and without, ids of the padding token inside a row, and one row
alone; of classes that look for the last token, also without a padding token. One line of JSON for each batch:

    same       both compute the same
    refused    the program refuses, and transformers computes: what it says has to name the reason
    noted      the program says that it does not know the class's head, and computes what is below it
    fails      transformers refuses (with `ours`: what the program does)
    SILENT     the numbers differ, or the program leaves out the logits without a word: a fault
"""

import start  # first: it lets the others be found

import collections
import json
import subprocess
import sys
from pathlib import Path

import torch
import transformers

from fixtures import checkpoint, tensor_file
from fixtures.families import FAMILIES
from sweep.subject import SECONDS, TOLERANCE, scratch

SEED, PAD = 3, 1
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
ALONE = ("bart", "mbart", "pegasus", "plbart", "mvp", "blenderbot", "blenderbot-small", "marian", "whisper", "bert-generation", "xglm")
COMPOSITE = {"gemma3": "Gemma3ForCausalLM", "gemma4": "Gemma4ForCausalLM", "gemma4_unified": "Gemma4UnifiedForCausalLM"}
OTHERS = {
    "whisper": ["WhisperForAudioClassification"],
    "siglip2": ["Siglip2Model", "Siglip2TextModel", "Siglip2VisionModel", "Siglip2ForImageClassification"],
    "wav2vec2": ["Wav2Vec2ForSequenceClassification", "Wav2Vec2ForCTC", "Wav2Vec2ForAudioFrameClassification", "Wav2Vec2ForXVector"],
}
COMPARED = ("logits", "start_logits", "end_logits", "logits_per_image", "text_embeds", "image_embeds", "last_hidden_state", "pooler_output")


def stem(model_type: str) -> str:
    """What the names of a model type's classes begin with."""
    base = transformers.AutoModel._model_mapping[type(transformers.AutoConfig.for_model(model_type))]
    return (base[0] if isinstance(base, tuple) else base).__name__.removesuffix("Model")


def subjects() -> dict[str, str]:
    """The model type by the class."""
    found = {}
    for model_type, family in FAMILIES.items():
        if family.head and family.head.endswith(("ForCausalLM", "LMHeadModel")) or model_type in ("gpt2", "mvp", "bart", "mbart", "plbart"):
            try:
                names = [stem(model_type) + head for head in HEADS]
            except (KeyError, ValueError):
                continue
            found |= {name: model_type for name in names if hasattr(transformers, name)}
    found |= {stem(model_type) + "ForCausalLM": model_type for model_type in ALONE if model_type != "bert-generation"}
    found |= {name: model_type for model_type, name in COMPOSITE.items()}
    return found | {name: model_type for model_type, names in OTHERS.items() for name in names}


def made(name: str, model_type: str, folder: Path, keys: dict) -> torch.nn.Module:
    """A small random model, as transformers saves it and reads it again."""
    config = transformers.AutoConfig.for_model(model_type, **FAMILIES[model_type].sizes)
    composite = config.to_dict()
    if name in COMPOSITE.values():
        config = config.get_text_config()
    if model_type == "siglip2":
        config.text_config.projection_size = config.vision_config.hidden_size
    for key, value in {"pad_token_id": PAD, **keys}.items():
        setattr(config.get_text_config() if hasattr(config, "get_text_config") else config, key, value)
    config._attn_implementation = "eager"
    model = getattr(transformers, name)(config).eval()
    checkpoint.randomise(model, SEED)
    model.save_pretrained(folder)
    if name in COMPOSITE.values():
        text = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**composite, "text_config": text, "architectures": [name]}, default=str))
    return getattr(transformers, name).from_pretrained(folder, attn_implementation="eager", experts_implementation="eager").eval()


def batches(model: torch.nn.Module) -> dict[str, dict]:
    """Inputs by what they are."""
    config = model.config
    generator = torch.Generator().manual_seed(SEED)
    if model.main_input_name == "input_features":
        encoder = model.get_encoder().config
        return {"a sound": {"input_features": torch.randn(2, encoder.num_mel_bins, 2 * encoder.max_source_positions, generator=generator)}}
    if model.main_input_name == "input_values":
        return {"a sound": {"input_values": torch.randn(2, 400, generator=generator)}}
    if type(model).__name__.startswith("Siglip2") and "Text" not in type(model).__name__:
        vision = getattr(config, "vision_config", config)
        n, width = vision.num_patches, vision.num_channels * vision.patch_size**2
        side = int(n**0.5)
        pixels = {"pixel_values": torch.randn(2, n, width, generator=generator), "pixel_attention_mask": torch.ones(2, n, dtype=torch.long), "spatial_shapes": torch.tensor([[side, side]] * 2)}
        part = {"pixel_values": pixels["pixel_values"].clone(), "pixel_attention_mask": pixels["pixel_attention_mask"].clone(), "spatial_shapes": torch.tensor([[side, side], [side - 1, side]])}
        part["pixel_attention_mask"][1, (side - 1) * side :] = 0
        ids = {"input_ids": torch.randint(2, 9, (2, 6), generator=generator)} if type(model).__name__ == "Siglip2Model" else {}
        return {"images": {**ids, **pixels}, "images of two shapes": {**ids, **part}}
    words = min(config.get_text_config().vocab_size, 11)
    whole = torch.randint(2, words, (3, 6), generator=generator)
    found = {"one row": {"input_ids": whole[:1]}, "rows": {"input_ids": whole}}
    for side, cut in {"right": slice(4, None), "left": slice(0, 2)}.items():
        ids, mask = whole.clone(), torch.ones_like(whole)
        ids[1, cut], mask[1, cut] = PAD, 0
        found[f"padded {side}"] = {"input_ids": ids, "attention_mask": mask}
        found[f"padded {side}, no mask"] = {"input_ids": ids}
    inside = whole.clone()
    inside[0, 2], inside[1, 3:5] = PAD, PAD
    if config.is_encoder_decoder and "ForSequenceClassification" in type(model).__name__:
        # It looks for the last token of the end, of which each row must have as many.
        for given in found.values():
            kept = given.get("attention_mask", torch.ones_like(given["input_ids"]))
            for row, mask in zip(given["input_ids"], kept, strict=True):
                row[mask.nonzero().max()] = config.eos_token_id
        return {name: {key: tensor.clone() for key, tensor in given.items()} for name, given in found.items()}
    masked = torch.ones_like(whole)
    masked[1, 4:] = 0
    return found | {"padding inside": {"input_ids": inside}, "mask without padding": {"input_ids": whole, "attention_mask": masked}, "padding alone": {"input_ids": torch.full_like(whole[:1], PAD)}}


@torch.no_grad()
def judged(model: torch.nn.Module, given: dict) -> dict:
    """What transformers computes."""
    seen = model(**given)
    return {name: seen[name].double() for name in COMPARED if name in seen and torch.is_tensor(seen[name])}


def computed(program: Path, folder: Path, given: dict) -> tuple[dict | None, str]:
    """What the program computes, and what it says."""
    tensor_file.write(folder / "input.tensors", given, {})
    (folder / "output.tensors").unlink(missing_ok=True)
    command = [program, "run", "--model", folder, "--input", folder / "input.tensors", "--output", folder / "output.tensors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        return None, done.stderr.strip()
    return {name: tensor.double() for name, tensor in tensor_file.read(folder / "output.tensors").items()}, done.stderr.strip()


def verdict(ours: dict | None, said: str, judge: dict, mask: torch.Tensor | None) -> dict:
    """What comes of two results."""
    if ours is None:
        return {"verdict": "refused", "said": said[:300]}
    if {"start_logits", "end_logits"} <= judge.keys() and "logits" in ours:
        judge = {"logits": torch.stack([judge["start_logits"], judge["end_logits"]], -1)}
    worst, lacks = 0.0, []
    for name, tensor in judge.items():
        if name not in ours or ours[name].shape != tensor.shape:
            lacks.append(name)
            continue
        one, other = (t[mask.bool()] if mask is not None and t.shape[:2] == mask.shape else t for t in (ours[name], tensor))
        worst = max(worst, ((one - other).abs().max() / other.abs().max().clamp(min=1e-3)).nan_to_num(9.9).item())
    record = {"apart": worst, "lacks": lacks} | ({"said": said[:300]} if said else {})
    if worst > TOLERANCE or (lacks and "architectures" not in said):
        return record | {"verdict": "SILENT"}
    return record | {"verdict": "noted" if lacks else "same"}


def sweep(program: Path, name: str, model_type: str):
    """A record for each batch."""
    is_last = name.endswith("ForSequenceClassification")
    for keys in [{}, {"pad_token_id": None}] if is_last else [{}]:
        with scratch() as directory:
            folder = Path(directory)
            record = {"class": name, "model_type": model_type, "keys": keys}
            try:
                model = made(name, model_type, folder, keys)
                inputs = batches(model)
            except Exception as failed:
                yield record | {"verdict": "NO BASE", "why": f"{type(failed).__name__}: {failed}"[:200]}
                continue
            for batch, given in inputs.items():
                ours, said = computed(program, folder, given)
                try:
                    judge = judged(model, given)
                except Exception as failed:
                    yield record | {"batch": batch, "verdict": "fails", "why": f"{type(failed).__name__}: {failed}"[:200], "ours": said[:200] or "runs"}
                    continue
                yield record | {"batch": batch} | verdict(ours, said, judge, given.get("attention_mask"))


def main() -> None:
    parser = start.options(__doc__, "lines of JSON are added here")
    parser.add_argument("classes", nargs="*")
    args = parser.parse_args()
    out = args.out.open("a") if args.out else sys.stdout
    known = subjects()
    for name in args.classes or known:
        counts = collections.Counter()
        for record in sweep(args.program.resolve(), name, known[name]):
            counts[record["verdict"]] += 1
            print(json.dumps(record), file=out, flush=True)
        print(name, dict(counts), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
