"""ONNX Runtime's CPU provider, with the fused operators that its own transformer optimizer creates for such models.

The graphs contain those operators from the start (`com.microsoft`: Attention, GroupQueryAttention, SkipLayerNormalization,
BiasGelu ...), so that no exporter's pattern can escape the optimizer.
"""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import modules

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
# Operators outside `com.microsoft`.
STANDARD = {"Add", "ArgMax", "Gather", "Gemm", "LayerNormalization", "MatMul", "Mul", "SimplifiedLayerNormalization", "Split"}


class OnnxRuntime:
    def __init__(self, threads: int):
        self.threads = threads
        self.version = ort.__version__
        self.settings = "CPU provider, its transformer optimizer's fused operators, weights prepacked, spinning threads"

    def load(self, task):
        if task.precision != "f32":
            raise ValueError(f"ONNX Runtime's CPU provider has no {task.precision} on this architecture")
        if task.op == "train_step":
            raise ValueError("it does not train")
        weights = modules.Weights(task.checkpoint)
        graph = Graph()
        inputs = {"x": task.x.numpy()}
        outputs = ["y"]
        if task.op == "feed_forward":
            inputs = {"x": task.x.flatten(0, 1).numpy()}
            graph.feed_forward(weights, 0, "x", "y")
        elif task.op == "encoder":
            if task.mask is not None:
                inputs["mask"] = task.mask.numpy().astype(np.int32)
            graph.encoder(weights, "mask" if task.mask is not None else "")
        else:
            seen = task.x.shape[1]
            if weights.config["model_type"] == "gpt2":
                outputs += graph.gpt2(weights, seen if task.op == "step" else 0)
            else:
                outputs += graph.llama(weights, seen, task.op)
            if task.op == "step":
                inputs = {"x": task.step.numpy()} | past(modules.build("step", task.checkpoint, seen), task, weights.config["model_type"])
        shape = (task.step if task.op == "step" else task.x).shape
        return self.session(graph, inputs, outputs, tuple(shape))

    def session(self, graph, inputs, outputs, shape):
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        model = graph.model(inputs, outputs)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        kept = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
        for name, value in kept.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            # Keys and values are written in place, if the operator supports it.
            buffer = kept.get(name.replace("new_", "past_")) if name.startswith("new_") and graph.shares_cache else None
            if buffer is None:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_ortvalue_output(name, buffer)

        def run():
            session.run_with_iobinding(binding)
            return binding.get_outputs()[0].numpy().reshape(shape)

        run.kept = kept
        return run


def past(network, task, model_type: str) -> dict[str, np.ndarray]:
    """Returns the context's keys and values, computed by PyTorch, in the operators' layout."""
    import torch

    with torch.no_grad():
        _, *tensors = network(task.x)
    arrays = [tensor.numpy() for tensor in tensors]
    if model_type == "gpt2":
        pairs = zip(arrays[::2], arrays[1::2])
        return {f"past_{i}": np.ascontiguousarray(np.stack(pair)) for i, pair in enumerate(pairs)}
    room = [np.concatenate([array, np.zeros_like(array[:, :, :1])], axis=2) for array in arrays]
    names = [f"past_{part}_{i}" for i in range(len(room) // 2) for part in ("key", "value")]
    return dict(zip(names, room))


class Graph:
    """Nodes and constants, from input `x` to output `y`."""

    def __init__(self):
        self.nodes, self.constants = [], []
        self.shares_cache = False

    def constant(self, name: str, array) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(self, op: str, inputs: list[str], outputs: list[str], **attributes):
        fused = op not in STANDARD
        domain = "com.microsoft" if fused else ""
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def product(self, layer, x: str, name: str) -> str:
        """Returns the product without the bias, which the next operator adds."""
        weight = self.constant(f"{name}.weight", layer.weight.t().numpy())
        return self.node("MatMul", [x, weight], [f"{name}.product"])

    def bias(self, layer, name: str) -> str:
        return self.constant(f"{name}.bias", layer.bias.numpy())

    def skip_norm(self, norm, layer, product: str, residual: str, name: str, out: str, total: str = "") -> str:
        """Computes `norm(product + bias + residual)`, and writes the sum to `total`."""
        weight = self.constant(f"{name}.norm.weight", norm.weight.numpy())
        if getattr(norm, "bias", None) is None:
            inputs, op = [product, residual, weight], "SkipSimplifiedLayerNormalization"
        else:
            norm_bias = self.constant(f"{name}.norm.bias", norm.bias.numpy())
            inputs, op = [product, residual, weight, norm_bias, self.bias(layer, name)], "SkipLayerNormalization"
        outputs = [out, "", "", total] if total else [out]
        return self.node(op, inputs, outputs, epsilon=float(norm.eps))

    def feed_forward(self, weights, layer: int, x: str, out: str) -> str:
        block, name = modules.BertFeedForward(weights, layer), f"{layer}.feed_forward"
        up = self.product(block.up, x, f"{name}.up")
        hidden = self.node("BiasGelu", [up, self.bias(block.up, f"{name}.up")], [f"{name}.hidden"])
        down = self.product(block.down, hidden, f"{name}.down")
        return self.skip_norm(block.norm, block.down, down, x, f"{name}.down", out)

    def encoder(self, weights, mask: str):
        x, n_layers = "x", weights.config["num_hidden_layers"]
        for i in range(n_layers):
            block = modules.BertBlock(weights, i)
            attended = self.attention(block.project, x, mask, f"{i}.attention")
            product = self.product(block.output, attended, f"{i}.attention.output")
            middle = self.skip_norm(block.norm, block.output, product, x, f"{i}.attention.output", f"{i}.middle")
            x = self.feed_forward(weights, i, middle, "y" if i == n_layers - 1 else f"{i}.out")

    def attention(self, block, x: str, mask: str, name: str, earlier: str = "", present: str = "", causal: int = 0) -> str:
        weight = self.constant(f"{name}.weight", block.qkv.weight.t().numpy())
        inputs = [x, weight, self.bias(block.qkv, name), mask, earlier]
        while inputs[-1] == "":
            inputs.pop()
        outputs = [f"{name}.out", present] if present else [f"{name}.out"]
        return self.node("Attention", inputs, outputs, num_heads=block.n_heads, unidirectional=causal)

    def gpt2(self, weights, seen: int) -> list[str]:
        """Returns the names of the new keys and values."""
        network = modules.Decoder(weights, 0)
        first = network.blocks[0].attention_norm
        constants = [self.constant("first.weight", first.weight.numpy()), self.constant("first.bias", first.bias.numpy())]
        normal = self.node("LayerNormalization", ["x", *constants], ["first"], epsilon=first.eps)
        x, present = "x", []
        for i, block in enumerate(network.blocks):
            present.append(f"new_{i}")
            earlier = f"past_{i}" if seen else ""
            attended = self.attention(block, normal, "", f"{i}.attention", earlier, present[-1], causal=1)
            product = self.product(block.output, attended, f"{i}.output")
            normal = self.skip_norm(
                block.feed_forward_norm, block.output, product, x, f"{i}.output", f"{i}.middle", f"{i}.sum"
            )
            up = self.product(block.up, normal, f"{i}.up")
            hidden = self.node("FastGelu", [up, self.bias(block.up, f"{i}.up")], [f"{i}.hidden"])
            down = self.product(block.down, hidden, f"{i}.down")
            last = i == len(network.blocks) - 1
            norm = network.final_norm if last else network.blocks[i + 1].attention_norm
            out, total = ("y", "") if last else (f"{i}.normal", f"{i}.out")
            normal = self.skip_norm(norm, block.down, down, f"{i}.sum", f"{i}.down", out, total)
            x = f"{i}.out"
        return present

    def llama(self, weights, seen: int, op: str) -> list[str]:
        """Like `gpt2`, with buffers that have space for one position after `seen`."""
        self.shares_cache = op == "step"
        network = modules.Decoder(weights, seen)
        half = network.cos.shape[1] // 2
        tables = [self.constant("cos", network.cos[:, :half].numpy()), self.constant("sin", network.sin[:, :half].numpy())]
        total = seen + 1 if op == "step" else seen
        # GroupQueryAttention counts from the last position.
        last_position = self.constant("last_position", np.array([total - 1], dtype=np.int32))
        length = self.constant("length", np.array(total, dtype=np.int32))
        first = network.blocks[0].attention_norm
        weight = self.constant("first.weight", first.weight.numpy())
        normal = self.node("SimplifiedLayerNormalization", ["x", weight], ["first"], epsilon=float(first.eps), axis=-1)
        x, present = "x", []
        for i, block in enumerate(network.blocks):
            names = [f"new_key_{i}", f"new_value_{i}"]
            earlier = [f"past_key_{i}", f"past_value_{i}"] if op == "step" else ["", ""]
            present += names
            qkv = self.product(block.qkv, normal, f"{i}.qkv")
            attended = self.node(
                "GroupQueryAttention", [qkv, "", "", *earlier, last_position, length, *tables], [f"{i}.attended", *names],
                num_heads=block.n_heads, kv_num_heads=block.n_kv_heads, do_rotary=1,
            )
            product = self.product(block.output, attended, f"{i}.output")
            normal = self.skip_norm(
                block.feed_forward_norm, block.output, product, x, f"{i}.output", f"{i}.middle", f"{i}.sum"
            )
            both = self.product(block.gate_up, normal, f"{i}.gate_up")
            self.node("Split", [both], [f"{i}.gate", f"{i}.up"], axis=-1, num_outputs=2)
            # SiLU, with alpha 1.
            gate = self.node("QuickGelu", [f"{i}.gate"], [f"{i}.silu"], alpha=1.0)
            hidden = self.node("Mul", [gate, f"{i}.up"], [f"{i}.hidden"])
            down = self.product(block.down, hidden, f"{i}.down")
            last = i == len(network.blocks) - 1
            norm = network.final_norm if last else network.blocks[i + 1].attention_norm
            out, next_total = ("y", "") if last else (f"{i}.normal", f"{i}.out")
            normal = self.skip_norm(norm, block.down, down, f"{i}.sum", f"{i}.down", out, next_total)
            x = f"{i}.out"
        return present

    def model(self, inputs: dict[str, np.ndarray], outputs: list[str]) -> bytes:
        def described(name, array):
            kind = INT32 if array.dtype == np.int32 else FLOAT
            return helper.make_tensor_value_info(name, kind, list(array.shape))

        described_outputs = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
        return self.proto([described(*one) for one in inputs.items()], described_outputs).SerializeToString()

    def proto(self, inputs: list, outputs: list):
        graph = helper.make_graph(self.nodes, "case", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
