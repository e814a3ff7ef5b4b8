"""Text embeddings: sentence-transformers, and the runtimes without it, which need no PyTorch."""

import json

import numpy as np
from tokenizers import Tokenizer

from exports import exported

BATCH = 32  # sentence-transformers' default


class SentenceTransformers:
    def __init__(self, threads: int):
        import sentence_transformers
        import torch

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self.settings = f"sentence-transformers {sentence_transformers.__version__}, eager, batches of {BATCH}"
        self.open = sentence_transformers.SentenceTransformer

    def load(self, task):
        model = self.open(str(task.checkpoint), device="cpu")
        return lambda: model.encode(task.texts, batch_size=BATCH, show_progress_bar=False)


class Runtime:
    """A runtime's encoder with the same pipeline as in sentence-transformers: padded batches of texts with similar
    lengths, the mean over tokens, unit length."""

    def __init__(self, threads: int):
        self.threads = threads
        self.settings = f"its encoder between `tokenizers` and NumPy, batches of {BATCH} by length"

    def load(self, task):
        forward = self.forward(task)  # input_ids, token_type_ids, attention_mask -> [batch, seq, d_model]
        tokenizer = Tokenizer.from_file(str(task.checkpoint / "tokenizer.json"))
        tokenizer.enable_truncation(json.loads((task.checkpoint / "sentence_bert_config.json").read_text())["max_seq_length"])
        tokenizer.enable_padding()

        def run():
            order = sorted(range(len(task.texts)), key=lambda i: -len(task.texts[i]))
            parts = []
            for first in range(0, len(order), BATCH):
                batch = tokenizer.encode_batch([task.texts[i] for i in order[first : first + BATCH]])
                ids, types, mask = (np.array([getattr(one, part) for one in batch], dtype=np.int32)
                                    for part in ("ids", "type_ids", "attention_mask"))
                keep = mask[..., None].astype(np.float32)
                mean = (forward(ids, types, mask) * keep).sum(1) / keep.sum(1)
                parts.append(mean / np.linalg.norm(mean, axis=1, keepdims=True))
            vectors = np.concatenate(parts)
            vectors[order] = vectors.copy()
            return vectors

        return run


class OnnxRuntime(Runtime):
    def forward(self, task):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        session = ort.InferenceSession(exported(task, "onnx") / "model.onnx", options, providers=["CPUExecutionProvider"])
        return lambda *inputs: session.run(["y"], dict(zip(("input_ids", "token_type_ids", "mask"), inputs)))[0]


class OpenVino(Runtime):
    def forward(self, task):
        import openvino as ov

        compiled = ov.Core().compile_model(exported(task, "openvino") / "openvino_model.xml", "CPU", {
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": task.precision,
            "PERFORMANCE_HINT": "LATENCY",
        })
        return lambda *inputs: compiled(inputs, share_inputs=True, share_outputs=True)[0]
