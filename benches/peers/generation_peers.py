"""Greedy generation: transformers, and the runtimes without it, which need no PyTorch.

`load` returns a function that computes all new tokens, [batch, new_tokens]. Its `first_ms` is the time to the first
token.
"""

import sys
import time

import numpy as np

from exports import exported


class Generation:
    """`step(ids, seen)` takes tokens after `seen` others and returns the most probable next ones, [batch]."""

    def __init__(self, task, step):
        self.task, self.step = task, step
        self.first_ms = None

    def __call__(self):
        start = time.perf_counter()
        ids, seen, tokens = self.task.ids, 0, []
        while len(tokens) < self.task.new_tokens:
            tokens.append(self.step(ids, seen))
            if len(tokens) == 1:
                self.first_ms = 1e3 * (time.perf_counter() - start)
            seen += ids.shape[1]
            ids = tokens[-1][:, None]
        return np.stack(tokens, axis=1)


def only(task, *precisions: str):
    if task.precision not in precisions:
        raise ValueError(f"it does not compute in {task.precision}, or not on this architecture")


class Transformers:
    def __init__(self, threads: int):
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        torch.set_grad_enabled(False)
        self.torch, self.transformers = torch, transformers
        self.settings = f"transformers {transformers.__version__}, generate, scaled_dot_product_attention"

    def load(self, task):
        self.task, self.first_ms = task, None
        only(task, "f32", "bf16")
        dtype = {"f32": self.torch.float32, "bf16": self.torch.bfloat16}[task.precision]
        self.model = self.transformers.AutoModelForCausalLM.from_pretrained(task.checkpoint, dtype=dtype).eval()
        return self

    def __call__(self):
        ids = self.torch.from_numpy(self.task.ids)
        ends = []

        def note(ids, scores, **_):  # called after each token
            ends.append(time.perf_counter())
            return self.torch.zeros(len(ids), dtype=self.torch.bool)

        start = time.perf_counter()
        done = self.model.generate(
            ids, attention_mask=self.torch.ones_like(ids), max_new_tokens=self.task.new_tokens, do_sample=False,
            stopping_criteria=self.transformers.StoppingCriteriaList([note]),
        )
        self.first_ms = 1e3 * (ends[0] - start)
        return done[:, ids.shape[1] :].numpy()


class OnnxRuntime:
    def __init__(self, threads: int):
        import onnxruntime

        self.ort, self.threads = onnxruntime, threads
        self.settings = "a graph of fused operators, as its GenAI package makes: GroupQueryAttention into a shared cache"

    def load(self, task):
        only(task, "f32", "int4")
        options = self.ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        file = exported(task, "onnx-int4" if task.precision == "int4" else "onnx") / "model.onnx"
        session = self.ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        batch, prompt = task.ids.shape
        binding = session.io_binding()
        for port in session.get_inputs():
            if port.name.startswith("past_"):
                _, n_kv, _, head_dim = port.shape
                room = np.zeros((batch, n_kv, prompt + task.new_tokens, head_dim), dtype=np.float32)
                room = self.ort.OrtValue.ortvalue_from_numpy(room)
                binding.bind_ortvalue_input(port.name, room)
                binding.bind_ortvalue_output(port.name.replace("past_", "new_"), room)
        names = {port.name for port in session.get_inputs()}

        def step(ids, seen):
            total = seen + ids.shape[1]
            inputs = {
                "input_ids": np.ascontiguousarray(ids),
                "positions": np.arange(seen, total),
                "last_positions": np.full(batch, total - 1, dtype=np.int32),
                "length": np.array(total, dtype=np.int32),
            }
            for name in names & inputs.keys():
                binding.bind_cpu_input(name, inputs[name])
            binding.bind_output("y", "cpu")
            session.run_with_iobinding(binding)
            return next(y for y in binding.get_outputs() if y.element_type() == 7).numpy()

        return Generation(task, step)


class OpenVino:
    def __init__(self, threads: int):
        import openvino
        import openvino_genai

        self.ov, self.genai, self.threads = openvino, openvino_genai, threads
        version = openvino_genai.__version__.split("-")[0]
        self.settings = f"OpenVINO GenAI {version}, paged attention, cache of the case's precision (int4: f16), no cache of prefixes"

    def load(self, task):
        self.task, self.first_ms = task, None
        only(task, "f32", "bf16", "int4")
        is_int4 = task.precision == "int4"
        scheduler = self.genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # otherwise the same prompts are not computed again
        scheduler.max_num_batched_tokens = task.ids.size  # all prompts at once
        self.pipeline = self.genai.ContinuousBatchingPipeline(
            str(exported(task, "openvino-int4" if is_int4 else "openvino")), scheduler, "CPU",
            {
                "INFERENCE_NUM_THREADS": self.threads,
                "INFERENCE_PRECISION_HINT": "bf16" if is_int4 else task.precision,
                "KV_CACHE_PRECISION": "f16" if is_int4 else task.precision,
                "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128 if is_int4 else 0,
            },
        )
        self.config = self.genai.GenerationConfig()
        self.config.max_new_tokens = task.new_tokens
        self.config.set_eos_token_id(0)  # required, but ignored
        self.config.ignore_eos = True
        return self

    def __call__(self):
        prompts = [self.ov.Tensor(np.ascontiguousarray(row[None])) for row in self.task.ids]
        results = self.pipeline.generate(prompts, [self.config] * len(prompts))
        self.first_ms = max(result.perf_metrics.get_ttft().mean for result in results)
        return np.array([result.m_generation_ids[0] for result in results])


class LlamaCpp:
    def __init__(self, threads: int):
        from llama_cpp import llama_cpp

        self.llama, self.threads = llama_cpp, threads

        @llama_cpp.llama_log_callback
        def complain(level, text, _):
            if level in (3, 4):  # warnings and errors
                sys.stderr.write(text.decode(errors="replace"))

        self.complain = complain  # llama.cpp holds no reference
        llama_cpp.llama_log_set(complain, None)
        llama_cpp.llama_backend_init()
        self.settings = "llama-cpp-python, built for this CPU; flash attention, cache of the case's precision (codes: f16)"

    def load(self, task):
        if task.precision == "int4":
            raise ValueError("its files have no groups of 128; it is measured with its own")
        llama = self.llama
        batch, prompt = task.ids.shape
        model = llama.llama_model_load_from_file(
            (task.file or str(exported(task, f"gguf-{task.precision}") / "model.gguf")).encode(), llama.llama_model_default_params()
        )
        config = llama.llama_context_default_params()
        config.n_seq_max = batch
        config.n_ctx = batch * (-(-(prompt + task.new_tokens) // 256) * 256)  # in blocks of 256, like llama.cpp
        config.n_batch = config.n_ubatch = task.ids.size
        config.n_threads = config.n_threads_batch = self.threads
        config.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        config.type_k = config.type_v = {"f32": 0, "bf16": 30}.get(task.precision, 1)  # ggml's type ids; f16 if quantized
        context = llama.llama_init_from_model(model, config)
        if not context:
            raise RuntimeError("llama.cpp makes no context; its messages are above")
        n_words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        work = llama.llama_batch_init(task.ids.size, 0, 1)

        def step(ids, seen):
            if seen == 0:
                llama.llama_memory_clear(llama.llama_get_memory(context), True)
            last = []
            for i, token in enumerate(ids.flat):
                row, place = divmod(i, ids.shape[1])
                work.token[i], work.pos[i] = int(token), seen + place
                work.n_seq_id[i], work.seq_id[i][0] = 1, row
                work.logits[i] = place == ids.shape[1] - 1
                if work.logits[i]:
                    last.append(i)
            work.n_tokens = ids.size
            if llama.llama_decode(context, work) != 0:
                raise RuntimeError("llama_decode fails")
            logits = (llama.llama_get_logits_ith(context, i) for i in last)
            return np.array([np.ctypeslib.as_array(row, (n_words,)).argmax() for row in logits])

        return Generation(task, step)
