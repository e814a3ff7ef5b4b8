"""Writes a quantized model's weights unquantized, for quantization methods that candle-blocks does not read.

    python dequantize.py FOLDER NEW

transformers must be able to compute with the model. Each linear layer is applied to the unit vectors, which gives its weight.
"""

import sys

import torch
import transformers


def main(folder: str, new: str) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    model_class = getattr(transformers, config.architectures[0])  # with its head
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, loading = model_class.from_pretrained(folder, device_map=device, output_loading_info=True)
    if loading["missing_keys"]:
        sys.exit(f"this version of transformers does not read {sorted(loading['missing_keys'])[0]}; try another")
    del config.quantization_config
    with torch.device("meta"):
        dense = model_class(config)
    names = {name for name, module in dense.named_modules() if isinstance(module, torch.nn.Linear)}
    tensors = {key: value for key, value in model.state_dict().items() if not any(key.startswith(f"{name}.") for name in names)}
    with torch.no_grad():
        for name in names:
            layer, bias = model.get_submodule(name), dense.get_submodule(name).bias
            units = torch.eye(dense.get_submodule(name).in_features, dtype=model.dtype, device=device)
            at_zero = layer(units[:1] * 0)
            tensors[f"{name}.weight"] = (layer(units) - at_zero).T.contiguous().cpu()
            if bias is not None:
                tensors[f"{name}.bias"] = at_zero[0].cpu()
    dense.load_state_dict(tensors, assign=True)
    dense.save_pretrained(new)


if __name__ == "__main__":
    main(*sys.argv[1:])
