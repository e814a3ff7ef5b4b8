"""Changes each key of `quantization_config` in each committed format, and judges what the program then computes.

    python weights/sweep/quantization.py BINARY [--all]      prints verdicts that are not "same" or "refused by name", or all

The judge of compressed-tensors is the package itself, which decompresses the tensors by the changed configuration. Of GPTQ it
is the rule that its kernels compute by. Of the other methods it is `expected.safetensors`: the keys that their kernels read
are in `READ`, where a changed value contradicts the tensors, and no other key may change a number.

Verdicts: "same" (the logits are the judge's), "refused by name" (the message names the key), "both refuse", "refused"
(without the name), "only we compute" (the package refuses the configuration, the tensors can be read), "SILENT" (other
logits, and no word of it).
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_file

ROOT = Path(__file__).resolve().parents[1] / "quantized"
BOUND = 1e-4
# The compressors of the committed folders, and the tensors of a module.
FORMAT = {"float8": "float-quantized", "float8-blocks": "float-quantized", "int8": "int-quantized", "mxfp4": "mxfp4-pack-quantized"}
FORMAT |= {"nvfp4": "nvfp4-pack-quantized", "packed-3": "pack-quantized", "packed-4": "pack-quantized"}
PARTS = ("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_global_scale", "weight_g_idx")

# Keys by which the kernels of a method compute, with values that are other than those of the committed files.
READ = {
    "gptq": {"bits": [2, 3, 4, 8], "group_size": [16, 32, 64, -1], "checkpoint_format": ["gptq", "gptq_v2", "marlin"], "format": ["gptq_v2", "marlin"], "pack_dtype": ["int8"]},
    "awq": {"bits": [3, 8], "group_size": [16, 64, -1], "version": ["gemv", "gemv_fast"], "pack_dtype": ["int8"]},
    "mlx": {"bits": [2, 3, 6, 8], "group_size": [16, 64], "mode": ["mxfp4", "nvfp4", "mxfp8"]},
    "fp8": {"weight_block_size": [[16, 16], [64, 64], None], "fmt": ["e5m2"]},
}
# Keys that change no weight, or that no kernel has; the last one is nobody's.
OTHER = {
    "sym": [True, False, None],
    "desc_act": [True, False],
    "true_sequential": [True],
    "static_groups": [True],
    "damp_percent": [0.01],
    "act_group_aware": [True],
    "use_exllama": [True],
    "max_input_length": [2048],
    "exllama_config": [{"version": 2}],
    "backend": ["auto"],
    "modules_to_not_convert": [["lm_head"]],
    "modules_in_block_to_quantize": [[["self_attn.q_proj"]]],
    "block_name_to_quantize": ["model.layers"],
    "module_name_preceding_first_block": [["model.embed_tokens"]],
    "cache_block_outputs": [True],
    "tokenizer": ["x"],
    "dataset": ["c4"],
    "model_seqlen": [64],
    "batch_size": [2],
    "pad_token_id": [0],
    "meta": [{"quantizer": ["gptqmodel:5.0"]}],
    "zero_point": [True],
    "do_fuse": [False],
    "llm_int8_threshold": [1.0],
    "llm_int8_skip_modules": [["lm_head"]],
    "llm_int8_has_fp16_weight": [True],
    "bnb_4bit_compute_dtype": ["float16"],
    "bnb_4bit_quant_storage": ["uint8"],
    "bnb_4bit_quant_type": ["nf4", "fp4"],
    "bnb_4bit_use_double_quant": [True, False],
    "activation_scheme": ["static", "dynamic"],
    "scale_fmt": ["ue8m0"],
    "dequantize": [True],
    "kv_cache_quant_algo": ["FP8"],
    "exclude_modules": [["lm_head"]],
    "lm_head": [False],
    "adapter": [{"type": "lora"}],
    "rotation": ["hadamard"],
    "nobodys": [7],
}
# The fields of compressed-tensors' configuration, in which a path has dots.
WEIGHTS = "config_groups.group_0.weights."
COMPRESSED = {
    "format": ["marlin-24", "sparse-24-bitmask"],
    "quantization_status": ["compressed", "frozen", "initialized"],
    "ignore": [[], ["lm_head", "re:.*self_attn.*"]],
    "global_compression_ratio": [1.5],
    "version": ["0.20"],
    "run_compressed": [False],
    "kv_cache_scheme": [{"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}],
    "sparsity_config": [{"format": "dense"}, {"format": "sparse-bitmask"}, {}],
    "transform_config": [
        {"config_groups": {"R": {"type": "hadamard", "apply": [{"targets": ["re:.*o_proj$"], "location": location, "inverse": inverse}]}}}
        for location, inverse in [("input", False), ("output", True), ("weight_input", True), ("weight_output", True)]
    ],
    "moe_sparsity_config": [{"method": "magnitude", "num_experts": [1]}],
    "config_groups.group_0.targets": [["re:.*"], ["Linear"]],
    "config_groups.group_0.input_activations": [{"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}],
    "config_groups.group_0.output_activations": [{"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}],
    WEIGHTS + "num_bits": [3, 4, 8],
    WEIGHTS + "type": ["int", "float"],
    WEIGHTS + "symmetric": [True, False],
    WEIGHTS + "group_size": [16, 32, None],
    WEIGHTS + "strategy": ["tensor", "channel", "group", "block", "tensor_group"],
    WEIGHTS + "block_structure": [[16, 16], [32, 32]],
    WEIGHTS + "dynamic": [True],
    WEIGHTS + "actorder": ["group", "weight", "static"],
    WEIGHTS + "scale_dtype": ["torch.float32"],
    WEIGHTS + "zp_dtype": ["torch.int8"],
    WEIGHTS + "observer": ["minmax"],
    "nobodys": [7],
}


def changed(config: dict, path: str, value):
    """A copy in which the value at a path is another; `None` if it would be the same or there is no such place."""
    config = copy.deepcopy(config)
    *outer, last = path.split(".")
    place = config
    for key in outer:
        place = place.get(key)
        if not isinstance(place, dict):
            return None
    if last in place and place[last] == value:
        return None
    place[last] = value
    return config


def of_compressed(stored: dict, own: dict) -> dict:
    """The weights that compressed-tensors' own classes make of the tensors, with scales in f32."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    # Rotations at these places are part of the model, and not of its weights.
    for scheme in (own.get("transform_config") or {}).get("config_groups", {}).values():
        if any(one["location"] in ("input", "output") for one in scheme["apply"]):
            raise NotImplementedError("the model rotates")
    group = QuantizationConfig.model_validate({key: value for key, value in own.items() if key != "name"}).config_groups["group_0"]
    compressor = BaseCompressor.load_from_registry(FORMAT[own["name"]])
    weights = {}
    for module in modules(stored, ["weight_packed", "weight_scale"]):
        parts = {name: stored[f"{module}.{name}"] for name in PARTS if f"{module}.{name}" in stored}
        if parts["weight_scale"].dtype in (torch.bfloat16, torch.float16):
            parts["weight_scale"] = parts["weight_scale"].float()
        if own["name"] == "nvfp4":  # its own decompression rounds to bf16
            codes = unpack_fp4_from_uint8(parts["weight_packed"], len(parts["weight_packed"]), 2 * parts["weight_packed"].shape[1]).float()
            given = {"scale": parts["weight_scale"].float(), "global_scale": parts["weight_global_scale"]}
            weights[module] = dequantize(x_q=codes, args=group.weights, dtype=torch.float32, **given)
        else:
            weights[module] = compressor.decompress(parts, group)["weight"].float()
    return weights


def of_gptq(stored: dict, own: dict) -> dict:
    """The weights that AutoGPTQ's and GPTQModel's kernels compute with."""
    bits, less = own["bits"], own.get("checkpoint_format", own.get("format", "gptq")) == "gptq"
    weights = {}
    for module in modules(stored, ["qweight"]):
        words, zeros, scales = (stored[f"{module}.{name}"].numpy() for name in ("qweight", "qzeros", "scales"))
        columns = len(words) * 32 // bits
        codes = unpacked(words.T, bits)[:, :columns]
        zeros = unpacked(zeros, bits)[:, : len(codes)] + less
        # GPTQModel's symmetric files may name one format and store the other; their kernels know the zero point.
        middle = 1 << (bits - 1)
        if own.get("sym") and len(np.unique(zeros)) == 1 and zeros[0, 0] in (middle - 1, middle + 1):
            zeros[:] = middle
        size = columns if own["group_size"] == -1 else own["group_size"]
        index = stored[f"{module}.g_idx"].numpy() if f"{module}.g_idx" in stored else np.arange(columns) // size
        scales = scales.astype(np.float32)
        weights[module] = torch.from_numpy((codes - zeros.T[:, index]).astype(np.float32) * scales.T[:, index])
    return weights


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Rows of words as rows of codes, lowest bits first."""
    stream = (words.view(np.uint32)[:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
    stream = stream.reshape(len(words), -1)
    stream = stream[:, : stream.shape[1] // bits * bits].reshape(len(words), -1, bits)
    return (stream.astype(np.int64) << np.arange(bits)).sum(-1)


def modules(stored: dict, ends: list[str]) -> list[str]:
    return sorted({name.rsplit(".", 1)[0] for name in stored if name.rsplit(".", 1)[1] in ends})


def judged(method: str, source: Path, config: dict, own: dict, expected: dict):
    """The logits of transformers' Llama with the judge's weights; an error's text if there are none."""
    weigh = {"compressed-tensors": of_compressed, "gptq": of_gptq}.get(method)
    if weigh is None:
        return expected["logits"].numpy()
    try:
        stored = torch_file(source / "model.safetensors")
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**plain)).eval()
        weights = {f"{module}.weight": weight for module, weight in weigh(stored, {**own, "name": source.name}).items()}
        state = {name: weights.get(name, stored.get(name)) for name in model.state_dict()}
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        model.load_state_dict({name: tensor[:, : shapes[name][-1]] if tensor.ndim == 2 else tensor for name, tensor in state.items()})
        with torch.no_grad():
            return model(expected["input_ids"]).logits.numpy()
    except Exception as error:  # whatever it is, the judge has no numbers
        return f"{type(error).__name__}: {error}"


def of_program(binary: Path, folder: Path, ids: np.ndarray):
    """The logits of the program, or its message."""
    save_file({"input_ids": ids.astype(np.int64)}, folder / "ids.safetensors_")
    out = folder / "out.safetensors_"
    out.unlink(missing_ok=True)
    command = [binary, "run", "--model", folder, "--input", folder / "ids.safetensors_", "--output", out]
    done = subprocess.run(command, capture_output=True, text=True)
    return load_file(out)["logits"] if done.returncode == 0 else done.stderr.strip()


def same(one, other) -> bool:
    return one.shape == other.shape and np.isfinite(other).all() and np.abs(one - other).max() <= BOUND * np.abs(other).max()


def verdict(ours, judge, path: str) -> str:
    names = {path.split(".")[-1], path.split(".")[0]}
    if isinstance(ours, str):
        if any(name in ours or name.replace("_", " ") in ours for name in names):
            return "refused by name"
        return "both refuse" if isinstance(judge, str) else "refused"
    if isinstance(judge, str):
        return "only we compute"
    return "same" if same(ours, judge) else "SILENT"


def cases(method: str):
    """Every key of a method with values to try."""
    if method == "compressed-tensors":
        yield from COMPRESSED.items()
        return
    yield from READ.get(method, {}).items()
    yield from OTHER.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    verdicts, keys = Counter(), set()
    for source in sorted(ROOT.iterdir()):
        config = json.loads((source / "config.json").read_text())
        key = "quantization" if "quantization" in config else "quantization_config"
        method = "mlx" if key == "quantization" else config[key].get("quant_method", "bitsandbytes")
        expected = torch_file(source / "expected.safetensors")
        for path, values in cases(method):
            for value in values:
                own = changed(config[key], path, value)
                if own is None:
                    continue
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name)
                    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
                    (folder / "config.json").write_text(json.dumps(config | {key: own}))
                    ours = of_program(args.binary.resolve(), folder, expected["input_ids"].numpy())
                judge = judged(method, source, config, own, expected)
                found = verdict(ours, judge, path)
                verdicts[found] += 1
                keys.add((method, path))
                if args.all or found not in ("same", "refused by name", "both refuse"):
                    print(f"{found}: {source.name}: {path} = {json.dumps(value)}", flush=True)
                    for who, result in [("ours", ours), ("judge", judge)]:
                        if isinstance(result, str):
                            print(f"    {who}: {result[:300]}", flush=True)
    print(f"{len(keys)} keys of methods, {sum(verdicts.values())} files: {dict(verdicts)}")
    sys.exit(1 if verdicts["SILENT"] else 0)


if __name__ == "__main__":
    main()
