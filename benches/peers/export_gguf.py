"""Decoders as llama.cpp files, with a dummy vocabulary."""

import ctypes
import sys
from pathlib import Path

import gguf
import numpy as np

import modules


def write(weights: modules.Weights, precision: str, folder: Path):
    is_gpt2 = weights.config["model_type"] == "gpt2"
    writer = gguf.GGUFWriter(folder / "model.gguf", "gpt2" if is_gpt2 else "llama")
    network = modules.Decoder(weights, 0)
    block = network.blocks[0]
    words = weights.words()
    n_words, d_model = words.shape
    writer.add_context_length(modules.positions(weights.config))
    writer.add_embedding_length(d_model)
    writer.add_block_count(len(network.blocks))
    writer.add_feed_forward_length(block.down.in_features)
    writer.add_head_count(block.n_heads)
    writer.add_head_count_kv(block.n_kv_heads)
    if is_gpt2:
        writer.add_layer_norm_eps(block.attention_norm.eps)
    else:
        writer.add_layer_norm_rms_eps(block.attention_norm.eps)
        writer.add_rope_dimension_count(d_model // block.n_heads)
        writer.add_rope_freq_base(modules.rotary_base(weights.config))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(n_words)])
    writer.add_token_types([1] * n_words)
    writer.add_token_merges(["t 1"])

    def put(name: str, tensor):
        """Writes matrices in the precision and all other tensors in f32, like llama.cpp's own converter."""
        array = np.ascontiguousarray(tensor.numpy().astype(np.float32))
        if precision == "bf16" and array.ndim == 2 and name != "position_embd.weight":
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)

    def put_layer(name: str, layer, weight=None):
        put(f"{name}.weight", layer.weight if weight is None else weight)
        if getattr(layer, "bias", None) is not None:
            put(f"{name}.bias", layer.bias)

    put("token_embd.weight", words)
    if is_gpt2:
        put("position_embd.weight", weights.get("wpe.weight"))
    put_layer("output_norm", network.final_norm)
    for i, block in enumerate(network.blocks):
        put_layer(f"blk.{i}.attn_norm", block.attention_norm)
        put_layer(f"blk.{i}.ffn_norm", block.feed_forward_norm)
        put_layer(f"blk.{i}.attn_output", block.output)
        put_layer(f"blk.{i}.ffn_down", block.down)
        if is_gpt2:
            put_layer(f"blk.{i}.attn_qkv", block.qkv)
            put_layer(f"blk.{i}.ffn_up", block.up)
            continue
        n, n_kv, head_dim = block.n_heads, block.n_kv_heads, d_model // block.n_heads
        query, key, value = block.qkv.weight.split([n * head_dim, n_kv * head_dim, n_kv * head_dim])
        put(f"blk.{i}.attn_q.weight", interleaved(query, n))
        put(f"blk.{i}.attn_k.weight", interleaved(key, n_kv))
        put(f"blk.{i}.attn_v.weight", value)
        gate, up = block.gate_up.weight.chunk(2)
        put(f"blk.{i}.ffn_gate.weight", gate)
        put(f"blk.{i}.ffn_up.weight", up)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_coded(weights: modules.Weights, codes: str, folder: Path):
    """Writes every matrix in one quantized type, with llama.cpp's own quantizer."""
    from llama_cpp import llama_cpp

    write(weights, "f32", folder)
    plain, coded = folder / "plain.gguf", folder / "model.gguf"
    coded.rename(plain)
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{FILE_TYPES.get(codes, codes.upper())}")
    parameters.pure = True
    if llama_cpp.llama_model_quantize(str(plain).encode(), str(coded).encode(), ctypes.byref(parameters)) != 0:
        sys.exit(f"llama.cpp does not write {codes}; its messages are above")
    plain.unlink()


# The file type's name differs from the quantized type's. With all matrices in one type, the mixture does not matter.
FILE_TYPES = {"q4_k": "Q4_K_S"}


def interleaved(weight, n_heads: int):
    """Converts between rotary layouts: llama.cpp rotates neighbors, transformers the two halves of a head."""
    rows, columns = weight.shape
    return weight.view(n_heads, 2, rows // n_heads // 2, columns).transpose(1, 2).reshape(rows, columns)
