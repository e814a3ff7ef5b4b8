"""Does PEFT compute with our adapters what transformers computes with the merged checkpoint?

    cargo run --release --example lora -- DIR OUT
    python weights/check_adapters.py DIR OUT

Needs `pip install peft`. Fails if PEFT leaves an adapter out, cannot open the adapter's folder alone, if the two differ by more than
rounding, or if the adapters change nothing.
"""

import argparse
import os
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
import peft
from peft import PeftConfig, PeftModel
from safetensors import safe_open

# Of the largest value: sums over adapters and weights are rounded in another order.
TOLERANCE = 1e-5

# PEFT's class that opens an adapter's folder alone, by the task that the folder names.
AUTO = {None: "AutoPeftModel", "CAUSAL_LM": "AutoPeftModelForCausalLM", "SEQ_2_SEQ_LM": "AutoPeftModelForSeq2SeqLM"}


def load(directory: Path) -> torch.nn.Module:
    """The model of the class that the files name: PEFT goes by its modules' names."""
    (name,) = transformers.AutoConfig.from_pretrained(directory).architectures
    return getattr(transformers, name).from_pretrained(directory, experts_implementation="eager").eval()


def random_input(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Two images, or the embeddings of two texts of five tokens."""
    config = model.config
    if model.main_input_name != "pixel_values":
        return {"inputs_embeds": torch.randn(2, 5, model.get_input_embeddings().embedding_dim)}
    height, width = (config.image_size,) * 2 if isinstance(config.image_size, int) else config.image_size
    return {"pixel_values": torch.randn(2, config.num_channels, height, width)}


def hidden_states(model: torch.nn.Module, x: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output of the last block."""
    return model(**x, output_hidden_states=True).hidden_states[-1]


def main() -> None:
    """Compares the hidden states of one random input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    original = load(args.original)
    torch.manual_seed(0)
    x = random_input(original)
    with torch.no_grad():
        before = hidden_states(original, x)
        merged = hidden_states(load(args.out / "merged"), x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # PEFT only warns of tensors that it found no place for
            adapted = PeftModel.from_pretrained(original, args.out / "adapters").eval()
        beside = hidden_states(adapted, x)
        config = PeftConfig.from_pretrained(args.out / "adapters")
        opened = getattr(peft, AUTO[config.task_type]).from_pretrained(str(args.out / "adapters"), experts_implementation="eager")
        alone = hidden_states(opened.eval(), x)
    with safe_open(args.out / "adapters" / "adapter_model.safetensors", "pt") as file:
        saved = len(list(file.keys()))
    loaded = sum("lora_" in name for name, _ in adapted.named_parameters())
    off = max(((each - merged).abs().max() / merged.abs().max()).item() for each in (beside, alone))
    moved = ((beside - before).abs().max() / before.abs().max()).item()
    print(f"{loaded} of {saved} adapter tensors; PEFT and merged differ by {off:.1e}; adapters move the output by {moved:.1e}")
    if loaded != saved or off > TOLERANCE or moved < 1e-2:
        sys.exit("the adapters do not do in PEFT what they do here")


if __name__ == "__main__":
    main()
