"""PyTorch: eager, and compiled by inductor with frozen weights."""

import os

import torch

import adapters
import modules

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Eager:
    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        torch.set_grad_enabled(False)
        self.version = torch.__version__
        self.settings = "eager, scaled_dot_product_attention, q/k/v in one product"

    def compile(self, function):
        return function

    def load(self, task):
        dtype = DTYPES.get(task.precision)
        if dtype is None:
            raise ValueError(f"PyTorch is not measured in {task.precision}")
        if task.op == "train_step":
            return self.train(task)
        x = task.x.to(dtype)
        network = modules.build(task.op, task.checkpoint, x.shape[1]).to(dtype)
        if task.op == "feed_forward":
            x = x.flatten(0, 1)
            run = self.compile(network)
            return lambda: run(x).view(task.x.shape)
        if task.op == "encoder":
            mask = None if task.mask is None else task.mask[:, None, None, :].bool()
            run = self.compile(network)
            return lambda: run(x, mask)
        if task.op == "prefill":
            run = self.compile(network)
            return lambda: run(x)[0]
        _, *past = network(x)
        room = [torch.cat([tensor, torch.zeros_like(tensor[:, :, :1])], dim=2) for tensor in past]
        step, seen = task.step.to(dtype), x.shape[1]
        run = self.compile(network.step_in_place)
        return lambda: run(step, seen, *room)

    def train(self, task):
        network = modules.build(task.op, task.checkpoint, task.x.shape[1])
        file = task.training["adapters"]
        if file is None:
            network.requires_grad_()
        else:
            adapters.attach(network, file)
        return Training(network, task)


class Training:
    """AdamW steps on a fixed batch. Each returns its loss."""

    def __init__(self, network, task):
        self.network, self.x, self.target = network, task.x, task.target
        self.plain_steps, self.dropout_steps = task.training["plain_steps"], task.training["dropout_steps"]
        # In bf16: products and operations on their results in bf16, parameters and gradients in f32.
        self.precision = torch.autocast("cpu", torch.bfloat16, enabled=task.precision == "bf16")
        # Fused: one pass over each parameter, the fastest of PyTorch's three forms here.
        self.optimizer = torch.optim.AdamW(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=task.training["learning_rate"], weight_decay=task.training["weight_decay"], fused=True,
        )
        self.network.train(self.dropout_steps > 0)
        torch.manual_seed(42)

    @torch.enable_grad()
    def __call__(self):
        self.optimizer.zero_grad()
        with self.precision:
            y = self.network(self.x)
            y = y[0] if isinstance(y, tuple) else y  # a decoder also returns keys and values
            loss = torch.nn.functional.mse_loss(y, self.target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def check(self):
        self.network.eval()
        losses = [self() for _ in range(self.plain_steps)]
        self.network.train(self.dropout_steps > 0)
        losses += [self() for _ in range(self.dropout_steps)]
        return torch.stack(losses)


class Compiled(Eager):
    def __init__(self, threads: int):
        super().__init__(threads)
        from torch._inductor import config

        config.freezing = True  # weights become constants, prepacked for the product
        config.cpp.threads = threads
        self.mode = os.environ.get("PEERS_COMPILE_MODE", "default")
        self.settings = f"torch.compile, inductor, mode {self.mode}, freezing, static shapes"

    def train(self, task):
        raise ValueError("compiled with frozen weights, it does not train")

    def compile(self, function):
        torch._dynamo.reset()  # shapes from earlier cases would count against the recompilation limit
        return torch.compile(function, dynamic=False, mode=self.mode)
