"""Do checkpoints whose tensors are named as on the Hub give transformers' numbers?

    python weights/sweep/published_tensors.py PROGRAM [--keep FOLDER | --ties] [NAME ...]

`published_tensors.json` has the tensors of much used repositories as differences from what transformers saves: the configuration
(a name of `published_configs.json`) and changed keys, the class whose weights the file has, names rewritten in order, tensors
added, and dtypes. Each becomes a small random checkpoint in a folder as published. Three results are compared: transformers on
the published names, transformers on its own names with the same weights, and `PROGRAM run`. One line for each:

    NAME  ours=same|DIFFERS|REFUSED  theirs=same|differs|fails  missing: what transformers leaves random  said: what the program says

`theirs` differs from transformers' own names where transformers does not find a published tensor. `--keep` keeps the folders.
`--ties` compares, instead, each configuration of `published_configs.json` with every tensor that its class may tie: beside the
tensor that it is tied to, with other values, and in its place.
"""

import start  # first: it lets the others be found

import json
import re
import shutil
import sys
from pathlib import Path

import torch
import transformers

from fixtures import checkpoint, hub_config, remote, tensor_file, whole
from fixtures.drive import blocks_of
from sweep.subject import SEED, Judge, Subject, inputs_of, same, scratch

FOLDER = Path(__file__).parents[1]
CONFIGS = json.loads((FOLDER / "published_configs.json").read_text())
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "bool": torch.bool, "u8": torch.uint8, "i64": torch.int64}


def published(case: dict, own: dict, config) -> dict:
    """The tensors under their published names, from those that transformers saves."""
    tensors = {}
    for name, tensor in own.items():
        for pattern, by in case.get("names", {}).items():
            name = re.sub(pattern, by, name)
        if name:  # or left out
            tensors[name] = tensor
    return tensors | added(case, tensors, config)


def added(case: dict, tensors: dict, config) -> dict:
    """Further tensors: `like NAME` is a copy, `other NAME` one of its shape with other values, else dtype and shape."""
    text = getattr(config, "text_config", config)
    layers = range(getattr(text, "num_hidden_layers", 0))
    found = {}
    for template, said in case.get("add", {}).items():
        for i in layers if "{i}" in template else [0]:
            kind, what = said.format(i=i).split(" ", 1)
            drawn = lambda shape: torch.randn(shape, generator=torch.Generator().manual_seed(SEED + i))
            if kind == "like":
                tensor = tensors[what].clone()
            elif kind == "other":
                tensor = drawn(tensors[what].shape).to(tensors[what].dtype)
            else:
                shape = [int(n) for n in what.split(",") if n.strip()]
                if kind == "i64":
                    tensor = torch.arange(shape[-1]).expand(shape).contiguous()
                elif kind in ("bool", "u8"):
                    tensor = torch.ones(shape).tril().to(DTYPES[kind])
                else:
                    tensor = drawn(shape).to(DTYPES[kind])
            found[template.format(i=i)] = tensor
    return found


def write(folder: Path, tensors: dict, layout: str) -> None:
    """Writes the weights: `safetensors`, `shards`, `bin`, `bin shards`, or both kinds."""
    if "bin" not in layout or "both" in layout:
        checkpoint.write_weights(folder, tensors, 2 if "shards" in layout else 1)
    if "bin" not in layout and "both" not in layout:
        return
    names = [*tensors]
    shards = [names] if "shards" not in layout else [names[: len(names) // 2], names[len(names) // 2 :]]
    weight_map = {}
    for i, own in enumerate(shards):
        file = "pytorch_model.bin" if len(shards) == 1 else f"pytorch_model-{i + 1:05}-of-{len(shards):05}.bin"
        torch.save({name: tensors[name] for name in own}, folder / file)
        weight_map.update(dict.fromkeys(own, file))
    if len(shards) > 1:
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def beside(folder: Path, names: list[str]) -> None:
    """Files that lie beside the weights and are not read."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            tensor_file.write(path, {"layers.0.attention.wq.weight": torch.ones(2, 2)}, {"format": "pt"})
        elif name.endswith((".bin", ".pt", ".pth")):
            torch.save({"layers.0.attention.wq.weight": torch.ones(2, 2)}, path)
        elif name.endswith(".json"):
            path.write_text("{}")
        else:
            path.write_bytes(b"of another program")


def loaded(folder: Path, name: str, attention: str | None = "eager"):
    """transformers' model of a folder, and what it missed. Without the name of an attention, with the one that transformers chooses."""
    options = {"attn_implementation": attention} if attention else {}
    model, info = remote.class_named(name).from_pretrained(
        folder, config=hub_config.read(folder), dtype=torch.float32, experts_implementation="eager",
        output_loading_info=True, local_files_only=True, **options,
    )
    return model.eval(), info


def results(model, inputs, folder: Path, name: str):
    part = whole.part_of(model)
    return Judge(model, part, inputs if inputs is not None else inputs_of(model, part), lambda: loaded(folder, name, None)[0])


def settings(case: dict) -> dict:
    config = case["config"]
    config = dict(CONFIGS[config] if isinstance(config, str) else config)
    for path, value in case.get("keys", {}).items():
        section, _, key = path.rpartition(".")
        if section:
            config[section] = {**config[section], key: value}
        else:
            config[path] = value
    return {key: value for key, value in config.items() if value != "absent"}


def judged(name: str, case: dict, program: Path, kept: Path | None = None) -> str:
    described = settings(case)
    (run,) = case.get("class", described.get("architectures")) if not isinstance(case.get("class"), str) else [case["class"]]
    stored = case.get("weights", run)
    with scratch() as directory:
        own, theirs = Path(directory) / "own", Path(directory) / "hub"
        own.mkdir(), theirs.mkdir()
        for folder in (own, theirs):
            (folder / "config.json").write_text(json.dumps(described))
        config = hub_config.read(own)
        config._attn_implementation = config._experts_implementation = "eager"
        model = remote.class_named(stored)(config).eval()
        checkpoint.randomise(model, SEED)
        tensors = checkpoint.disk_tensors(model, checkpoint.Layout(dtype=DTYPES[case.get("dtype", "f32")]))
        tensors |= added({"add": case.get("both", {})}, tensors, config)
        checkpoint.write_weights(own, tensors, 1)
        final = published(case, tensors, config)
        for pattern, dtype in case.get("dtypes", {}).items():
            final = {n: t.to(DTYPES[dtype]) if re.search(pattern, n) else t for n, t in final.items()}
        write(theirs, final, case.get("files", "safetensors"))
        beside(theirs, case.get("beside", []))
        if kept:
            shutil.copytree(theirs, kept / name, dirs_exist_ok=True)
        model, _ = loaded(own, run)
        truth = results(model, None, own, run)
        missing, unexpected = [], []
        try:
            model, info = loaded(theirs, run)
            missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
            judge = results(model, truth.inputs, theirs, run)
            their = "same" if same(judge.composed, truth.composed) else "differs"
        except Exception as error:
            their = f"fails {type(error).__name__} {error}"[:160].replace("\n", " ")
        subject = Subject(described["model_type"], run, program)
        ours, said = subject.ours(theirs, truth.inputs)
        # Which has the weights of the class alone, in f32.
        judges = [truth.composed] if "both" in case else [truth.composed, truth.usual]
        is_same = ours is not None and any(same(ours, judge) for judge in judges)
        verdict = "REFUSED" if ours is None else "same" if is_same else "DIFFERS"
        if ours is not None and "logits" in truth.composed and "logits" not in ours:
            verdict = "same, without its head" if same(ours, {k: v for k, v in truth.composed.items() if k != "logits"}) else "DIFFERS"
        short = lambda names: ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"ours={verdict}  theirs={their}" + (f"  missing: {short(missing)}" if missing else "") + (f"  unexpected: {short(unexpected)}" if unexpected else "") + (f"  said: {said}" if said else "")


def ties() -> dict:
    """For each tensor that a class may tie: other values beside the one that it is tied to, and that one under its name."""
    cases = {}
    for name, config in CONFIGS.items():
        tied = getattr(remote.class_named(config["architectures"][0]), "_tied_weights_keys", None) or {}
        keys = {"auto_map": "absent"}
        for copy, of in tied.items():
            if "bias" not in copy:
                cases[f"{name}/{copy}/differs"] = {"config": name, "keys": keys, "both": {copy: f"other {of}"}}
                cases[f"{name}/{copy}/alone"] = {"config": name, "keys": keys, "names": {f"^{re.escape(of)}$": copy}}
    return cases


if __name__ == "__main__":
    program, *names = sys.argv[1:]
    kept, cases = None, json.loads((FOLDER / "published_tensors.json").read_text())
    if names[:1] == ["--keep"]:
        kept, names = Path(names[1]), names[2:]
    if names[:1] == ["--ties"]:
        cases, names = ties(), names[1:]
    for name, case in cases.items():
        if not names or name.split("/")[0] in names:
            try:
                print(name, judged(name, case, Path(program).resolve(), kept), flush=True)
            except Exception as error:
                print(name, f"FAILS {type(error).__name__}: {error}"[:300].replace("\n", " "), flush=True)
