"""Adds tensors beside the quantized weights of a module, and judges what the program then computes.

    cd weights; python -m sweep.companions BINARY [--ordered DIR] [--all]   # prints verdicts that are not "same" or "refused by name"

Zero points are judged by compressed-tensors, which decompresses the module with them. Its releases up to 0.12 read
`weight_g_idx`: DIR is a folder with one of these (`pip install --no-deps --target DIR compressed-tensors==0.11.0`). No other
tensor may change a result; `report` tells that it is among the ignored tensors of `candle-blocks inspect`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from .quantization import ROOT, of_program, same

MODULE = "model.layers.0.mlp.up_proj"
ORDERED = """
import json, sys, torch
from safetensors.torch import load_file, save_file
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs
tensors, arguments = load_file(sys.argv[1]), json.loads(sys.argv[2])
compressor = BaseCompressor.load_from_registry(arguments.pop("format"))
weight = compressor.decompress_weight(tensors, quantization_args=QuantizationArgs(**arguments))
save_file({"weight": weight.float().contiguous()}, sys.argv[3])
"""


def candidates(parts: dict, n_rows: int, columns: int, group_size: int | None):
    """Names of tensors with values, and whether they may change the weight."""
    scale = next((parts[name] for name in ("weight_scale", "scales", "weight_scale_inv") if name in parts), torch.ones(n_rows))
    shape, rng = scale.shape, torch.Generator().manual_seed(5)
    # GPTQ's scales are one row for each group.
    n_groups = len(scale) if "qzeros" in parts else shape[-1] if scale.ndim == 2 and len(scale) == n_rows else 1
    random = torch.randint(-3, 4, shape, generator=rng)
    for kind in (torch.int8, torch.int32, torch.bfloat16, torch.float8_e4m3fn):
        yield "weight_zero_point", torch.zeros(shape, dtype=kind)
        yield "weight_zero_point", random.to(kind)
    groups = torch.arange(columns, dtype=torch.int32) // (group_size if group_size and group_size > 0 else -(-columns // n_groups))
    yield "weight_g_idx", groups
    yield "weight_g_idx", groups[torch.randperm(columns, generator=rng)]
    yield "weight_g_idx", torch.full((columns,), -1, dtype=torch.int32)
    yield "g_idx", groups
    yield "perm", torch.arange(columns, dtype=torch.int32)
    one = torch.ones(1)
    for name in ("input_scale", "output_scale", "input_zero_point", "output_zero_point", "input_global_scale", "activation_scale", "act_scale", "smooth_scale",
                 "min_vals", "max_vals", "weight_observer.min_vals", "input_observer.max_vals", "weight_fake_quant.scale", "activation_post_process.min_val", "weight_format"):
        yield name, one


def judged(own: dict, tensors: dict, parts: dict, ordered: Path | None, folder: Path):
    """The weight of the module by compressed-tensors; an error's text if there is none."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    parts = {name: tensor.float() if name == "weight_scale" and tensor.dtype == torch.bfloat16 else tensor for name, tensor in parts.items()}
    try:
        if "weight_g_idx" in parts:
            if ordered is None:
                return "not judged"
            args = own["config_groups"]["group_0"]["weights"]
            save_file({name: tensor.contiguous() for name, tensor in parts.items()}, folder / "parts_")
            arguments = json.dumps({**args, "format": own["format"]})
            run = [sys.executable, "-c", ORDERED, folder / "parts_", arguments, folder / "weight_"]
            done = subprocess.run(run, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ordered)})
            return load_file(folder / "weight_")["weight"] if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
        group = QuantizationConfig.model_validate(own).config_groups["group_0"]
        return BaseCompressor.load_from_registry(own["format"]).decompress(parts, group)["weight"].float()
    except Exception as error:  # whatever it is, the judge has no numbers
        return f"{type(error).__name__}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--ordered", type=Path)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    verdicts = Counter()
    for source in sorted(ROOT.iterdir()):
        config = json.loads((source / "config.json").read_text())
        own = config.get("quantization_config") or {}
        stored, expected = load_file(source / "model.safetensors"), load_file(source / "expected.safetensors")
        ids, base = expected["input_ids"].numpy(), expected["logits"].numpy()
        parts = {name.removeprefix(MODULE + "."): tensor for name, tensor in stored.items() if name.startswith(MODULE + ".")}
        if not parts:
            continue
        n_rows, columns = config["intermediate_size"], config["hidden_size"]
        for name, tensor in candidates(parts, n_rows, columns, own.get("group_size")):
            if name in parts:
                continue
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                (folder / "config.json").write_text(json.dumps(config))
                save_file({**stored, f"{MODULE}.{name}": tensor}, folder / "model.safetensors")
                ours = of_program(args.binary.resolve(), folder, ids)
                shown = subprocess.run([args.binary, "inspect", folder, "--json"], capture_output=True, text=True)
                is_noted = shown.returncode == 0 and f"{MODULE}.{name}" in json.loads(shown.stdout)["tensors"]["ignored"]
                changes = name in ("weight_zero_point", "weight_g_idx") and own.get("quant_method") == "compressed-tensors"
                judge = judged(own, stored, {**parts, name: tensor}, args.ordered, folder) if changes else None
                alone = judged(own, stored, parts, args.ordered, folder) if isinstance(judge, torch.Tensor) else None
                if isinstance(alone, torch.Tensor) and torch.equal(judge, alone):
                    # The judge rounds some weights to bf16: what changes nothing there must change nothing here.
                    judge = base
                elif isinstance(judge, torch.Tensor):
                    # The same model with that weight, dense.
                    plain = {key: value for key, value in stored.items() if not key.startswith(MODULE + ".")}
                    save_file({**plain, f"{MODULE}.weight": judge.contiguous()}, folder / "model.safetensors")
                    judge = of_program(args.binary.resolve(), folder, ids)
                if isinstance(ours, str):
                    verdict = "refused by name" if name in ours or name.split(".")[-1] in ours else "REFUSED WITHOUT ITS NAME"
                elif isinstance(judge, str):
                    verdict = "only we compute" if judge != "not judged" else judge
                elif judge is None:
                    verdict = "SILENT" if not same(ours, base) else "ignored, in the report" if is_noted else "read" if name in ("g_idx", "weight_g_idx", "weight_format") or name == "weight_zero_point" and not tensor.float().any() else "IGNORED SILENTLY"
                else:
                    verdict = "same" if same(ours, judge) else "SILENT"
            verdicts[verdict] += 1
            if args.all or verdict not in ("same", "refused by name", "ignored, in the report"):
                print(f"{verdict}: {source.name}: {name} {tensor.dtype} {list(tensor.shape)}", ours if isinstance(ours, str) else "", judge if isinstance(judge, str) else "", flush=True)
    print(dict(verdicts))
    sys.exit(any(verdict.isupper() or verdict[:7] in ("REFUSED", "IGNORED") for verdict in verdicts))


if __name__ == "__main__":
    main()
