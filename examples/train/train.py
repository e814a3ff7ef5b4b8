"""The training of this folder in PyTorch: the same model, initial weights, data, steps and schedule.

    cargo run --release --example train -- --text FILE --steps 0 --out INITIAL     # the initial weights
    python examples/train/train.py --initial INITIAL/model --text FILE --out losses.csv [--steps N]
    python examples/train/train.py --initial DIR/model --text FILE --evaluate      # a trained model's loss
    python examples/train/train.py --join DIR/losses.csv losses.csv --out BOTH     # the record beside this file

Needs torch and transformers (weights/requirements.txt). The lines written are those of the Rust side's `losses.csv`.
"""

import argparse
import csv
import math
import time
from pathlib import Path

import torch
import transformers

SEED = 42
ROWS = 12
LEARNING_RATE = 2e-3
WARM_UP = 100
WEIGHT_DECAY = 0.1
CLIP = 1.0
EVALUATE_EVERY = 50
N_EVALUATED = 32
WORD = (1 << 64) - 1


class Random:
    """SplitMix64, as random.rs."""

    def __init__(self, seed: int):
        self.state = seed

    def below(self, n: int) -> int:
        """A number below `n`."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & WORD
        z = (self.state ^ (self.state >> 30)) * 0xBF58476D1CE4E5B9 & WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
        return (z ^ (z >> 31)) % n


class Text:
    """As text.rs."""

    def __init__(self, path: Path, context: int):
        self.bytes = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self.context = context
        self.n_trained = len(self.bytes) - len(self.bytes) // 10

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What a step trains on."""
        random = Random(SEED ^ (step << 32))
        return self.rows([random.below(self.n_trained - self.context) for _ in range(ROWS)])

    def evaluation(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What every evaluation looks at."""
        last = len(self.bytes) - self.n_trained - self.context - 1
        return self.rows([self.n_trained + i * last // (N_EVALUATED - 1) for i in range(N_EVALUATED)])

    def rows(self, starts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and the bytes that follow each."""
        cut = lambda by: torch.stack([self.bytes[start + by : start + by + self.context] for start in starts])
        return cut(0), cut(1)


def loss_of(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Nats per byte."""
    inputs, targets = batch
    return torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())


def factor(step: int, steps: int) -> float:
    """Of the learning rate: warm-up and half a cosine."""
    if step < WARM_UP:
        return step / WARM_UP
    progress = min((step - WARM_UP) / max(steps - WARM_UP, 1), 1.0)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def evaluate(model: torch.nn.Module, text: Text) -> float:
    """The held-out part's loss."""
    with torch.no_grad():
        return loss_of(model, text.evaluation()).item()


def train(model: torch.nn.Module, text: Text, steps: int, out: Path) -> None:
    """All steps, a line per evaluation."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.99), eps=1e-8)
    start, since = time.time(), []
    with out.open("w") as file:
        print("step,trained,held_out", file=file)
        for step in range(steps):
            for group in optimiser.param_groups:
                group["lr"] = LEARNING_RATE * factor(step, steps)
            loss = loss_of(model, text.batch(step))
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            since.append(loss.item())
            done = step + 1
            if done % EVALUATE_EVERY == 0 or done == steps:
                trained, held_out = sum(since) / len(since), evaluate(model, text)
                since.clear()
                print(f"{done},{trained},{held_out}", file=file, flush=True)
                speed = done * ROWS * text.context / (time.time() - start)
                print(f"step {done:>5}: loss {trained:.4f}, held out {held_out:.4f}, {speed:.0f} tokens/s", flush=True)


def join(ours: Path, theirs: Path, out: Path) -> None:
    """Both sides' losses, step by step."""
    with ours.open() as one, theirs.open() as other, out.open("w") as both:
        rows = list(zip(csv.DictReader(one), csv.DictReader(other), strict=True))
        print("step,trained,held_out,torch_trained,torch_held_out", file=both)
        for our, their in rows:
            if our["step"] != their["step"]:
                raise SystemExit(f"step {our['step']} of {ours} stands beside step {their['step']} of {theirs}")
            print(*our.values(), their["trained"], their["held_out"], sep=",", file=both)


def main() -> None:
    """Trains, evaluates or joins."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--initial", type=Path, help="a directory that the Rust side wrote")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("losses.csv"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--join", type=Path, nargs=2, metavar=("OURS", "THEIRS"))
    args = parser.parse_args()
    if args.join:
        join(*args.join, args.out)
        return
    if not (args.initial and args.text):
        parser.error("--initial and --text are needed")
    torch.set_num_threads(args.threads)
    model = transformers.GPT2LMHeadModel.from_pretrained(args.initial, local_files_only=True)
    text = Text(args.text, model.config.n_positions)
    if args.evaluate:
        print(f"held out {evaluate(model, text):.6f}")
    else:
        train(model, text, args.steps, args.out)


if __name__ == "__main__":
    main()
