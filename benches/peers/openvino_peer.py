"""OpenVINO's CPU plugin, on static shapes, tuned for the time of a single request."""

import openvino as ov
import torch
from openvino.properties import hint

import modules

TYPES = {"f32": ov.Type.f32, "bf16": ov.Type.bf16}


class OpenVino:
    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.core = ov.Core()
        self.threads = threads
        self.version = ov.__version__
        self.settings = "latency hint, static shapes, inference precision as the case's, 1 stream"

    def load(self, task):
        if task.precision not in TYPES:
            raise ValueError(f"OpenVINO is not measured in {task.precision}")
        if task.op == "train_step":
            raise ValueError("it does not train")
        network = modules.build(task.op, task.checkpoint, task.x.shape[1])
        x = task.x
        if task.op == "feed_forward":
            x = x.flatten(0, 1)
        inputs = [x]
        if task.mask is not None:
            inputs.append(task.mask[:, None, None, :].bool())
        if task.op == "step":
            _, *past = network(x)
            inputs = [task.step, *past]
        model = ov.convert_model(network, example_input=tuple(inputs))
        model.reshape({port: list(tensor.shape) for port, tensor in zip(model.inputs, inputs)})
        compiled = self.core.compile_model(model, "CPU", {
            hint.performance_mode: hint.PerformanceMode.LATENCY,
            hint.inference_precision: TYPES[task.precision],
            "INFERENCE_NUM_THREADS": self.threads,
            "NUM_STREAMS": 1,
        })
        request = compiled.create_infer_request()
        kept = [tensor.contiguous().numpy() for tensor in inputs]
        for port, array in zip(compiled.inputs, kept):
            request.set_tensor(port, ov.Tensor(array, shared_memory=True))

        def run():
            request.infer()
            return request.get_output_tensor(0).data.reshape((task.x if task.op != "step" else task.step).shape)

        run.kept = kept  # the request does not keep these tensors alive
        return run
