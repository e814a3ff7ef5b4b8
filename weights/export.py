"""Makes the checkpoints, fixtures and reference values that the tests compare with.

    python weights/export.py all [--minilm DIR] [--transformers-4 DIR]   everything that is committed, and manifest.json
    python weights/export.py --check                 hashes, and that regeneration gives the same bytes
    python weights/export.py --self-test             planted faults: does each fixture see them?
    python weights/export.py changed-keys            what each change of a key in a committed checkpoint comes to, and manifest.json
    python weights/export.py default-configs         what each model type of transformers writes, and manifest.json
    python weights/export.py bert --out DIR ...      a small random checkpoint of a family, with its fixture
    python weights/export.py fixture --model DIR --out FILE ...   a fixture of a checkpoint of your own
    python weights/export.py whole --model DIR --out FILE ...     the same of the whole model, from ids to logits

Numbers come from transformers' own modules in evaluation mode, once in the dtype asked for and once in float64.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

# The hub is never asked: everything comes from local files.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

# Modules that only the committed files need, and with them peft, gguf and others, are imported by the functions below.
from fixtures import capture, checkpoint, inputs, manifest, torch_stack, whole
from fixtures.committed import COMMITTED, STACKS
from fixtures.families import FAMILIES, Drive, Part, describe, family_of

ROOT = Path(__file__).resolve().parent
DEFAULT_SEQ = 8
# Batch and sequence of the committed fixtures of whole models.
WHOLE_SIZES = (2, 6)
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}

def write_all(root: Path, minilm_source: Path | None, older: Path | None) -> None:
    """Everything that is committed; without MiniLM's checkpoint its directory stays as it is, and without transformers 4.57 the answers."""
    import own_module
    from fixtures import adapters, answers, changed_keys, default_configs, expansions, gguf_chat, gguf_files, gguf_pooling, gguf_types, gguf_words, gliner, minilm, pickles, pictures, quantized, quantized_vectors, rankings, reference, speech, static, tasks, text

    for name, arguments in COMMITTED.items():
        write_family(parser().parse_args([*arguments.split(), "--out", str(root / name)]))
    changed_keys.write(root)
    default_configs.write(root)
    reference.write(root / "reference")
    text.write(root / "text")
    tasks.write(root / "tasks")
    gliner.write(root / "tasks")
    static.write(root / "tasks")
    speech.write(root / "speech")
    quantized_vectors.write(root / "tasks/quantized_vectors.json")
    rankings.write(root / "tasks/rankings.json", root / "text")
    expansions.write(root, root / "text/expansions")
    quantized.write(root / "quantized")
    gguf_files.write(root / "gguf")
    gguf_words.write(root / "gguf-words")
    gguf_chat.write(root / "gguf-chat", root / "gguf-words/pairs")
    gguf_pooling.write(root / "gguf-pooling")
    gguf_pooling.write_rerankers(root / "gguf-pooling")
    gguf_types.write(root / "gguf-types")
    adapters.write(root)
    own_module.write(root / "own-module")
    pickles.write(root / "pickles")
    pictures.write(root / "pictures")
    if older:
        answers.write(root / "tasks", older)
    if minilm_source:
        minilm.write(root / "minilm-block0", minilm_source)
        text.write_minilm(root / "text/minilm.safetensors", minilm_source)


def write_family(args: argparse.Namespace) -> None:
    """A small random checkpoint, and the fixtures of the file as it was written: one for each stack and one of all.

    With the class of a head, the fixture of the whole model alone: the stacks are those without it.
    """
    overrides = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in args.set)}
    dtype = DTYPES[args.dtype]
    layout = checkpoint.Layout(args.prefix, args.norm_names, dtype, args.shards, args.buffers, args.config_names, args.head)
    checkpoint.write(args.out, args.command, overrides, args.seed, layout)
    # A table in JSON is judged by its blocks alone.
    is_whole = args.out.parent.name != "like" and all(part.drive is not Drive.WAVE for part in family_of(args.command).parts)
    if is_whole and args.command not in torch_stack.STACKS:
        sizes_of_whole = (*WHOLE_SIZES, args.padding, args.seed)
        for name, options in whole.forms(args.out).items():
            whole.write(args.out / f"{name}.safetensors", args.out, sizes_of_whole, args.attention, **options)
    if args.head:
        return
    model = capture.load(args.out, torch.float32)
    for part in family_of(args.command).parts:
        rows = inputs.random_inputs(model, part, *sizes(args, part))
        path = args.out / fixture_name(part)
        capture.write_fixture(path, args.out, part, rows, dtype, args.seed, not args.no_grads, args.attention)


def write_whole(args: argparse.Namespace) -> None:
    """A fixture of the whole model of a user's checkpoint."""
    sizes_of_whole = (args.batch, args.seq or DEFAULT_SEQ, args.padding, args.seed)
    whole.write(args.out, args.model, sizes_of_whole, args.attention)


def write_fixture(args: argparse.Namespace) -> None:
    """A fixture of a user's checkpoint, whose own embeddings make the input."""
    if args.family:
        describe(capture.model_type_of(args.model), args.family)
    model = capture.load(args.model, torch.float32)
    part = picked(family_of(model.config.model_type).parts, args.part)
    if args.text:
        sentences = args.text.read_text().splitlines()
        embedded = inputs.from_sentences(model, part, args.model, sentences, args.seq, args.seed)
    else:
        empty = inputs.placeholder(model, part, *sizes(args, part))
        embedded = inputs.from_random_ids(model, part, empty, args.seed)
    dtype = DTYPES[args.dtype]
    capture.write_fixture(args.out, args.model, part, embedded, dtype, args.seed, not args.no_grads, args.attention)


def sizes(args: argparse.Namespace, part: Part) -> tuple:
    """Batch, sequence, padding, positions and seed, as asked for or as fits the stack."""
    kind = args.positions or ("axes" if part.axes else "counted" if part.position_ids and part.padding == "left" else "none")
    if kind != "none" and not part.position_ids:
        sys.exit(f"positions do not reach the blocks of {args.command}")
    return args.batch, args.seq or DEFAULT_SEQ, args.padding or part.padding, kind, args.seed


def picked(parts: tuple[Part, ...], name: str | None) -> Part:
    """The stack called `name`, or the only one."""
    found = [part for part in parts if name in (None, part.name)]
    if len(found) != 1:
        sys.exit(f"choose one with --part: {', '.join(part.name for part in parts)}")
    return found[0]


def fixture_name(part: Part) -> str:
    """`fixture.safetensors`, or one per stack."""
    return f"fixture.{part.name}.safetensors" if part.name else "fixture.safetensors"


def check(minilm_source: Path | None, older: Path | None) -> None:
    """Compares the files with the manifest, and their regeneration with both."""
    with tempfile.TemporaryDirectory() as directory:
        write_all(Path(directory), minilm_source, older)
        found = manifest.differences(ROOT, Path(directory))
        made = len(manifest.generated_files(Path(directory)))
    if found:
        sys.exit("\n".join(found))
    total = len(manifest.generated_files(ROOT))
    print(f"{total} files agree with the manifest; {made} of them regenerated, byte for byte")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--check", action="store_true", help="compare hashes and regenerate")
    top.add_argument(
        "--self-test", type=Path, nargs="*", metavar="DIR", help="plant faults in these checkpoints, or in the committed ones"
    )
    top.add_argument("--minilm", type=Path, help="a local copy of all-MiniLM-L6-v2, for --check")
    top.add_argument("--transformers-4", type=Path, metavar="DIR", help="a folder with transformers 4.57, for --check: fixtures/answers.py")
    commands = top.add_subparsers(dest="command")

    everything = commands.add_parser("all", help="everything that is committed")
    everything.add_argument("--minilm", type=Path, help="a local copy of all-MiniLM-L6-v2")
    everything.add_argument("--transformers-4", type=Path, metavar="DIR", help="a folder with transformers 4.57: fixtures/answers.py")

    commands.add_parser("changed-keys", help="what transformers computes where a key of config.json is another")
    defaults = commands.add_parser("default-configs", help="the config.json that each model type of transformers writes, and the defaults of its class")
    defaults.add_argument("--check", action="store_true", dest="compare", help="compare with the committed files")

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--out", type=Path, required=True)
    shared.add_argument("--batch", type=int, default=3)
    shared.add_argument("--seq", type=int, help="tokens per sequence (8); with --text, where to cut")
    shared.add_argument("--seed", type=int, default=0)
    shared.add_argument("--padding", choices=("right", "left", "middle", "none"), help="as fits the family")
    shared.add_argument("--positions", choices=("none", "counted", "gaps", "axes"), help="position ids: as fits the family")
    shared.add_argument("--dtype", choices=DTYPES, default="f32")
    shared.add_argument("--attention", choices=("eager", "sdpa"), default="eager", help="transformers' implementation")
    shared.add_argument("--no-grads", action="store_true", help="leave gradients out")

    fixture = commands.add_parser("fixture", parents=[shared], help="a fixture of a checkpoint of your own")
    fixture.add_argument("--model", type=Path, required=True, help="directory with config.json and weights")
    fixture.add_argument("--text", type=Path, help="one sentence per line instead of random ids (needs the tokenizer)")
    fixture.add_argument("--family", type=Path, metavar="FILE", help="a table of your own, as the program's --family takes it")
    fixture.add_argument("--part", help="encoder, decoder, text or vision, where there are several")

    one = commands.add_parser("whole", parents=[shared], help="a fixture of the whole model of a checkpoint of your own")
    one.add_argument("--model", type=Path, required=True, help="directory with config.json and weights")

    for family in FAMILIES:
        tiny = commands.add_parser(family, parents=[shared], help=f"a small random {family} and its fixture")
        tiny.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a key of config.json")
        tiny.add_argument("--head", default="", metavar="CLASS", help="transformers' class with another head")
        tiny.add_argument("--prefix", choices=("hub", "bare", "headed"), default="hub")
        tiny.add_argument("--config-names", choices=("hub", "v5", "remote"), default="hub")
        tiny.add_argument("--norm-names", choices=("weight-bias", "gamma-beta"), default="weight-bias")
        tiny.add_argument("--shards", type=int, default=1)
        tiny.add_argument("--buffers", choices=("absent", "present"), default="absent")
    return top


def main() -> None:
    """Runs the command."""
    # One thread and fixed algorithms: the same machine gives the same bytes.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    args = parser().parse_args()
    if args.check:
        check(args.minilm, args.transformers_4)
    elif args.self_test is not None:
        from fixtures import self_test

        self_test.run(args.self_test or [ROOT / name for name in [*STACKS, "minilm-block0"]])
    elif args.command == "all":
        write_all(ROOT, args.minilm, args.transformers_4)
        manifest.write(ROOT)
    elif args.command == "changed-keys":
        from fixtures import changed_keys

        changed_keys.write(ROOT)
        manifest.write(ROOT)
    elif args.command == "default-configs":
        from fixtures import default_configs

        if args.compare:
            sys.exit("\n".join(default_configs.differences(ROOT)) or 0)
        default_configs.write(ROOT)
        manifest.write(ROOT)
    elif args.command == "fixture":
        write_fixture(args)
    elif args.command == "whole":
        write_whole(args)
    elif args.command:
        write_family(args)
    else:
        parser().print_help()
        sys.exit(2)


if __name__ == "__main__":
    main()
