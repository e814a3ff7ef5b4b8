"""What whole models are asked to do, and how far their results are from those of sentence-transformers and transformers."""

import random
from pathlib import Path

import torch
from safetensors.torch import save_file

from cases import CODES, COLD_TEXT, NEW_TOKENS, Case
from exports import export

NOVEL = Path(__file__).resolve().parents[2] / "weights/tiny-gpt-text/persuasion.txt"
MOST_WORDS = 200  # about as many as fill a text's 256 tokens


def task(case: Case, checkpoint: Path, work: Path) -> dict:
    """For a worker, beside what every case has. A file of codes is everyone's."""
    exports = work / f"{case.model}-exports"
    fields = {"exports": str(exports)}
    if case.op == "generation":
        fields["new_tokens"] = NEW_TOKENS
    if case.precision in CODES:
        fields["file"] = str(export(checkpoint, exports, f"gguf-{case.precision}") / "model.gguf")
    return fields


def write_input(case: Case, config: dict, path: Path) -> dict:
    """`texts`, one a line, of lengths as different as can be; or `input_ids` [batch, seq], prompts of random tokens."""
    if case.op == "texts":
        texts = [COLD_TEXT] if case.variant == "cold" else passages(case.batch)
        path.write_text("".join(f"{text}\n" for text in texts))
        return {"texts": texts}
    generator = torch.Generator().manual_seed(2)
    tensors = {"input_ids": torch.randint(config["vocab_size"], (case.batch, case.seq), generator=generator)}
    save_file(tensors, path)
    return tensors


def passages(n: int) -> list[str]:
    """From one word to `MOST_WORDS` in a row, in no order of length."""
    words = NOVEL.read_text().split()
    draw = random.Random(2)
    lengths = [1 + (MOST_WORDS - 1) * i // max(1, n - 1) for i in range(n)]
    draw.shuffle(lengths)
    starts = [draw.randrange(len(words) - MOST_WORDS) for _ in lengths]
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths)]


def vectors(directory: Path, texts: list[str]) -> torch.Tensor:
    """sentence-transformers' in float64, [texts, d_model]."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(directory), device="cpu").double()
    return model.encode(texts, convert_to_tensor=True, show_progress_bar=False)


class Likeliest:
    """How much less likely than the likeliest the tokens of a generation were, by transformers' logits for all before them.

    What transformers itself would have chosen is 0. Rounding may choose the other of two that are as likely, and other
    tokens follow from there on, which are judged as well.
    """

    def __init__(self, network, prompts: torch.Tensor):
        self.network, self.prompts, self.known = network, prompts, {}
        self.caches = None  # of each prompt but its last token

    @torch.no_grad()
    def gap(self, tokens: torch.Tensor) -> float:
        """The largest distance to the largest logit, in standard deviations of the logits; infinite where tokens are missing."""
        tokens = tokens.long()
        if tokens.shape != (len(self.prompts), NEW_TOKENS) or not 0 <= tokens.min() <= tokens.max() < self.network.config.vocab_size:
            return float("inf")
        key = tuple(tokens.flatten().tolist())
        if key not in self.known:  # most peers choose the same ones
            if self.caches is None:
                self.caches = [self.network(prompt[None, :-1], logits_to_keep=1).past_key_values for prompt in self.prompts]
            self.known[key] = max(self.gap_of(*one) for one in zip(self.caches, self.prompts, tokens))
        return self.known[key]

    def gap_of(self, cache, prompt: torch.Tensor, new: torch.Tensor) -> float:
        ids = torch.cat([prompt[-1:], new[:-1]])[None]
        logits = self.network(ids, past_key_values=cache).logits[0]
        cache.crop(-len(new))  # for the next tokens
        chosen = logits.gather(1, new[:, None])[:, 0]
        gap = ((logits.max(dim=1).values - chosen) / logits.std(dim=1)).max()
        return float("inf") if gap.isnan() else gap.item()
