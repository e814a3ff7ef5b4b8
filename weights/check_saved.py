"""Does transformers read a saved checkpoint as it reads the original?

    python weights/check_saved.py SAVED                           a new checkpoint: transformers must find nothing to say
    python weights/check_saved.py ORIGINAL SAVED                  everything must be equal
    python weights/check_saved.py ORIGINAL SAVED --changed NAME   tensors whose name contains NAME must differ
    python weights/check_saved.py ORIGINAL SAVED --outputs FILE   the saved blocks must give the outputs in FILE

Compares the files (names, shapes, dtypes, values), what transformers says while loading, its parameters,
and what the blocks give for the same random rows. Exits with 1 where something differs. FILE holds `hidden_states`,
which go into block 0, and the `last_hidden_state` that this crate made of them.
"""

import argparse
import logging
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from fixtures import capture, inputs, tensor_file, torch_stack
from fixtures.families import family_of

BATCH, SEQ = 2, 7
# Of the largest output: both round sums of this many terms in float32, in another order.
TOLERANCE = 1e-5


def compare(original: Path, saved: Path, changed: list[str], outputs: Path | None) -> list[str]:
    """What is wrong with the saved checkpoint."""
    problems = compare_files(original, saved, changed)
    (theirs, said), warned = listen(original)
    (ours, says), warns = listen(saved)
    problems += [f"transformers warns: {message}" for message in sorted(warns - warned)]
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        new = sorted(map(str, set(map(str, says.get(kind, ()))) - set(map(str, said.get(kind, ())))))
        if new:
            problems.append(f"transformers finds {kind} that the original has not: {', '.join(new)}")
    problems += compare_tensors("parameter", theirs.state_dict(), ours.state_dict(), None if changed else [])
    if not changed:
        problems += compare_outputs(original, saved)
    if outputs:
        problems += compare_with_file(saved, outputs)
    return problems


def complaints(saved: Path) -> list[str]:
    """What transformers says while loading a new checkpoint."""
    (_, says), warns = listen(saved)
    problems = [f"transformers warns: {message}" for message in sorted(warns)]
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if found := sorted(map(str, says.get(kind, ()))):
            problems.append(f"transformers finds {kind}: {', '.join(found)}")
    return problems


def listen(directory: Path) -> tuple[tuple[torch.nn.Module, dict], set[str]]:
    """What `load` gives, and every warning on the way, through Python's module or transformers' logger."""
    heard: set[str] = set()
    ear = logging.Handler(logging.WARNING)
    ear.emit = lambda record: heard.add(record.getMessage().replace(str(directory), "DIR"))
    logger = logging.getLogger("transformers")
    logger.addHandler(ear)
    transformers.logging.set_verbosity_warning()
    transformers.logging.disable_default_handler()  # they are judged, not shown
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = load(directory)
    finally:
        logger.removeHandler(ear)
        transformers.logging.set_verbosity_error()
    heard |= {str(warning.message).replace(str(directory), "DIR") for warning in caught}
    return loaded, heard


def compare_files(original: Path, saved: Path, changed: list[str]) -> list[str]:
    """The tensors on disk."""
    theirs, ours = tensor_file.read_all(original), tensor_file.read_all(saved)
    problems = compare_tensors("tensor", theirs, ours, changed)
    for name in theirs.keys() & ours.keys():
        if any(part in name for part in changed) and torch.equal(theirs[name], ours[name]):
            problems.append(f"tensor {name} did not change")
    return problems


def compare_tensors(kind: str, theirs: dict, ours: dict, changed: list[str] | None) -> list[str]:
    """Names, dtypes, shapes and bits; where `changed` is None, values are not compared."""
    problems = [f"{kind} {name} is not there" for name in sorted(theirs.keys() - ours.keys())]
    problems += [f"{kind} {name} is new" for name in sorted(ours.keys() - theirs.keys())]
    for name in sorted(theirs.keys() & ours.keys()):
        one, other = theirs[name], ours[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            problems.append(f"{kind} {name} was {one.dtype} {list(one.shape)} and is {other.dtype} {list(other.shape)}")
        elif changed is not None and not any(part in name for part in changed) and not same_bits(one, other):
            problems.append(f"{kind} {name} has other values")
    return problems


def compare_outputs(original: Path, saved: Path) -> list[str]:
    """Every stage of every stack on the same rows."""
    theirs, ours = capture.load(original, torch.float32), capture.load(saved, torch.float32)
    problems = []
    for part in family_of(capture.model_type_of(original)).parts:
        rows = inputs.random_inputs(theirs, part, BATCH, SEQ, part.padding, "none", seed=0)
        expected = capture.run(theirs, part, rows, gradients=False).outputs
        found = capture.run(ours, part, rows, gradients=False).outputs
        different = [name for name, value in expected.items() if not torch.equal(value, found[name])]
        problems += [f"{part.name} {name} differs".strip() for name in different]
    return problems


def compare_with_file(saved: Path, outputs: Path) -> list[str]:
    """transformers' blocks on the rows that this crate ran."""
    model, file = capture.load(saved, torch.float32), tensor_file.read(outputs)
    (part,) = family_of(capture.model_type_of(saved)).parts
    rows, expected = file["hidden_states"], file["last_hidden_state"]
    batch, seq, _ = rows.shape
    with_mask = inputs.random_inputs(model, part, batch, seq, "none", "none", seed=0)
    stages = capture.run(model, part, replace(with_mask, hidden_states=rows), gradients=False)
    found = list(stages.outputs.values())[-1]
    off = ((found - expected).abs().max() / expected.abs().max()).item()
    print(f"{saved}: transformers' outputs differ from ours by {off:.1e} of the largest")
    return [] if off < TOLERANCE else [f"outputs differ by {off:.1e}"]


def load(directory: Path) -> tuple[torch.nn.Module, dict]:
    """The model that config.json names, with its head, and what transformers said while loading it."""
    config = capture.config_of(directory)
    if config.model_type in torch_stack.STACKS:
        return capture.load(directory, torch.float32), {}
    torch.manual_seed(0)  # what a file lacks is drawn
    named = (config.architectures or ["AutoModel"])[0]
    model = getattr(transformers, named, transformers.AutoModel)
    try:
        return model.from_pretrained(directory, config=config, output_loading_info=True, local_files_only=True)
    except RuntimeError as error:
        sys.exit(f"{directory}: transformers cannot load it: {error}")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal, a NaN to a NaN."""
    return torch.equal(one.nan_to_num(), other.nan_to_num()) and torch.equal(one != one, other != other)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("saved", type=Path, nargs="?")
    parser.add_argument("--changed", action="append", default=[], metavar="NAME", help="part of a name; after training")
    parser.add_argument("--outputs", type=Path, metavar="FILE", help="this crate's inputs and outputs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.saved is None:
        args.saved, args.original = args.original, None
        problems = complaints(args.saved) + (compare_with_file(args.saved, args.outputs) if args.outputs else [])
    else:
        problems = compare(args.original, args.saved, args.changed, args.outputs)
    if problems:
        sys.exit("\n".join(f"{args.saved}: {problem}" for problem in problems))
    like = f"as in {args.original}" if args.original else "and transformers has nothing to say"
    print(f"{args.saved}: {len(tensor_file.read_all(args.saved))} tensors, {like}")


if __name__ == "__main__":
    main()
