"""Whole models as graphs with ONNX Runtime's fused operators, with dynamic batch and length."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import modules
from onnxruntime_peer import Graph

INT32, INT64, FLOAT = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT


def write(weights: modules.Weights, folder: Path, is_int4: bool = False):
    graph = Graph()
    described = texts(graph, weights) if weights.config["model_type"] == "bert" else generation(graph, weights)
    inputs, outputs = ([helper.make_tensor_value_info(*one) for one in some] for some in described)
    model = graph.proto(inputs, outputs)
    if is_int4:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        # Rows are rounded to bytes, the fastest setting.
        quantizer = MatMulNBitsQuantizer(model, block_size=128, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        model = quantizer.model.model
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data")


def texts(graph: Graph, weights: modules.Weights):
    """BERT from tokens to hidden states."""
    embeddings = [graph.constant(part, weights.get(f"embeddings.{part}").numpy()) for part in (
        "word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight",
        "LayerNorm.weight", "LayerNorm.bias",
    )]
    epsilon = weights.config["layer_norm_eps"]
    graph.node("EmbedLayerNormalization", ["input_ids", "token_type_ids", *embeddings], ["x", ""], epsilon=epsilon)
    graph.encoder(weights, "mask")
    inputs = [(name, INT32, ["batch", "seq"]) for name in ("input_ids", "token_type_ids", "mask")]
    return inputs, [("y", FLOAT, None)]


def generation(graph: Graph, weights: modules.Weights):
    """A decoder from tokens to the most probable next token, [batch]. Keys and values are in buffers [batch,
    n_kv_heads, capacity, head_dim], `past_*`, which share memory with `new_*`. All prompts have the same length."""
    network, config = modules.Decoder(weights, modules.positions(weights.config)), weights.config
    graph.shares_cache = True
    words = graph.constant("words", weights.words().numpy())
    graph.node("Gather", [words, "input_ids"], ["x"])
    tables = ["", ""]
    if network.rotary:
        half = network.cos.shape[1] // 2
        tables = [graph.constant("cos", network.cos[:, :half].numpy()), graph.constant("sin", network.sin[:, :half].numpy())]
    else:
        places = graph.constant("places", weights.get("wpe.weight").numpy())
        graph.node("Gather", [places, "positions"], ["place"])
        graph.node("Add", ["x", "place"], ["placed"])
    x, cache = "x" if network.rotary else "placed", []
    normal = norm(graph, network.blocks[0].attention_norm, x, "first")
    for i, block in enumerate(network.blocks):
        past, new = ([f"{when}_{part}_{i}" for part in ("key", "value")] for when in ("past", "new"))
        head_dim = block.qkv.in_features // block.n_heads
        cache += [(name, FLOAT, ["batch", block.n_kv_heads, "room", head_dim]) for name in past]
        qkv = product(graph, block.qkv, normal, f"{i}.qkv")
        attended = graph.node(
            "GroupQueryAttention", [qkv, "", "", *past, "last_positions", "length", *tables], [f"{i}.attended", *new],
            num_heads=block.n_heads, kv_num_heads=block.n_kv_heads, do_rotary=int(network.rotary),
        )
        x, normal = sum_and_norm(graph, block.output, block.feed_forward_norm, attended, x, f"{i}.attention")
        if network.rotary:
            both = graph.product(block.gate_up, normal, f"{i}.gate_up")
            graph.node("Split", [both], [f"{i}.gate", f"{i}.up"], axis=-1, num_outputs=2)
            gate = graph.node("QuickGelu", [f"{i}.gate"], [f"{i}.silu"], alpha=1.0)  # SiLU, with alpha 1
            hidden = graph.node("Mul", [gate, f"{i}.up"], [f"{i}.hidden"])
        else:
            up = graph.product(block.up, normal, f"{i}.up")
            hidden = graph.node("FastGelu", [up, graph.bias(block.up, f"{i}.up")], [f"{i}.hidden"])
        last = i == len(network.blocks) - 1
        following = network.final_norm if last else network.blocks[i + 1].attention_norm
        x, normal = sum_and_norm(graph, block.down, following, hidden, x, f"{i}.down")
    graph.node("Gather", [normal, graph.constant("last", np.array(-1))], ["last_state"], axis=1)
    # A copy of the word table, in the quantizer's matrix layout.
    head = graph.constant("head", np.ascontiguousarray(weights.words().numpy().T))
    graph.node("MatMul", ["last_state", head], ["logits"])
    graph.node("ArgMax", ["logits"], ["y"], axis=-1, keepdims=0)
    inputs = [("input_ids", INT64, ["batch", "seq"]), ("last_positions", INT32, ["batch"]), ("length", INT32, []), *cache]
    if not network.rotary:
        inputs.append(("positions", INT64, ["seq"]))
    return inputs, [("y", INT64, ["batch"]), *((name.replace("past_", "new_"), kind, None) for name, kind, _ in cache)]


def product(graph: Graph, layer, x: str, name: str) -> str:
    """Returns the product plus the bias, if there is one."""
    y = graph.product(layer, x, name)
    return y if layer.bias is None else graph.node("Add", [y, graph.bias(layer, name)], [f"{name}.sum"])


def norm(graph: Graph, norm, x: str, name: str) -> str:
    weight = graph.constant(f"{name}.weight", norm.weight.numpy())
    if getattr(norm, "bias", None) is None:
        return graph.node("SimplifiedLayerNormalization", [x, weight], [name], epsilon=float(norm.eps), axis=-1)
    bias = graph.constant(f"{name}.bias", norm.bias.numpy())
    return graph.node("LayerNormalization", [x, weight, bias], [name], epsilon=float(norm.eps))


def sum_and_norm(graph: Graph, layer, following, x: str, residual: str, name: str) -> tuple[str, str]:
    """Returns `residual + layer(x)`, and the next norm's result for it."""
    y = graph.product(layer, x, name)
    normal = graph.skip_norm(following, layer, y, residual, name, f"{name}.normal", f"{name}.total")
    return f"{name}.total", normal
