"""Runs one of `times.py`'s cases in PyTorch: `pytorch.py eager|compiled CASE`. `about` prints the version."""

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))


def main(mode: str, case: dict):
    try:
        found = measured(mode, case)
    except Exception as error:  # the driver records it and continues
        text = str(error).strip() or type(error).__name__
        found = {"error": text.splitlines()[0][:300]}
    print(json.dumps(found))


def measured(mode: str, case: dict) -> dict:
    name = {"metal": "mps"}.get(case["device"], case["device"])
    there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available, "cpu": lambda: True}
    if not there[name]():
        raise RuntimeError(f"{torch.__version__} finds no {case['device']} device")
    if mode == "about":
        return {"version": torch.__version__ + (f", CUDA {torch.version.cuda}" if torch.version.cuda else "")}
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize, "cpu": lambda: None}[name]

    def compiled(function):
        return torch.compile(function, dynamic=False, mode=case["compile"]) if mode == "compiled" else function

    torch.manual_seed(1)
    torch.set_grad_enabled(case["op"] == "train")
    call = prepared(case, torch.device(name), compiled)
    for _ in range(1 + case["warm"]):
        y = call()
    if not torch.isfinite(y).all():
        raise RuntimeError("wrong: its result is not finite")
    if name == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times, begin = [], time.perf_counter()
    while len(times) < case["least"] or time.perf_counter() - begin < case["seconds"]:
        wait()
        start = time.perf_counter()
        y = call()
        wait()
        times.append(1e3 * (time.perf_counter() - start))
    held = {"cuda": torch.cuda.max_memory_allocated, "mps": torch.mps.driver_allocated_memory}.get(name)
    return {"ms": times, "held_mb": held and held() / 1e6}


def prepared(case: dict, device, compiled):
    """Returns the case as a function, with the modules from the comparison on the CPU and random weights."""
    import modules

    d_model, d_ff, n_heads = case["d_model"], case["d_ff"], case["n_heads"]
    key_width = d_model // n_heads * case["n_kv_heads"]
    square, up, down = (d_model, d_model), (d_ff, d_model), (d_model, d_ff)
    bert = {"attention.output.dense": square, "intermediate.dense": up, "output.dense": down, "LayerNorm": (d_model,)}
    bert |= {name: square for name in ("query", "key", "value")}
    llama = {"gate_proj": up, "up_proj": up, "down_proj": down, "norm": (d_model,), "q_proj": square, "o_proj": square}
    llama |= {name: (key_width, d_model) for name in ("k_proj", "v_proj")}

    class Drawn(modules.Weights):
        def __init__(self, config: dict, shapes: dict):
            self.config, self.shapes = config, shapes

        def get(self, name: str):
            layer, kind = name.rsplit(".", 1)
            shape = next(shape for end, shape in self.shapes.items() if layer.endswith(end))
            return torch.randn(shape if kind == "weight" else shape[:1]) / d_model**0.5

    if case["family"] == "bert":
        config = {"num_attention_heads": n_heads, "num_hidden_layers": 1, "layer_norm_eps": 1e-12}
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        network = modules.BertEncoder(Drawn(config, bert))
    else:
        config = {"model_type": "llama", "hidden_size": d_model, "num_attention_heads": n_heads, "num_hidden_layers": 1}
        config |= {"num_key_value_heads": case["n_kv_heads"], "rms_norm_eps": 1e-5, "rope_theta": 500000.0}
        network = modules.Decoder(Drawn(config, llama), case["seq"])
        network.final_norm = torch.nn.Identity()  # a single layer
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[case["dtype"]]
    network = network.to(dtype).to(device)
    x, target = (torch.randn(case["batch"], case["seq"], d_model).to(dtype).to(device) for _ in range(2))
    if case["op"] == "train":
        return training(network.requires_grad_().train(), compiled, x, target)
    network.eval()
    if case["op"] == "decode":
        _, *past = network(x)
        room = [torch.cat([tensor, torch.zeros_like(tensor[:, :, :1])], dim=2) for tensor in past]
        step = compiled(network.step_in_place)
        return lambda: step(x[:, :1], case["seq"], *room)
    forward = compiled(network)
    return lambda: forward(x) if case["family"] == "bert" else forward(x)[0]


def training(network, compiled, x, target):
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)
    forward = compiled(network)

    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(forward(x), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
