"""Does each key of config.json change our numbers as it changes transformers'?

    python weights/sweep/config.py PROGRAM [MODEL_TYPE ...] [--classes all] [--most N] [--out FILE] [--keys PATTERN]

For each model type that the crate reads, and each class of it, makes a small random model, changes one key of its config.json
at a time, and runs transformers and `PROGRAM run` on the same ids. One line of JSON for each change, with one of these verdicts:

    same            both compute the same (with `changed`: something else than before the change)
    refused         the program refuses, and names the key
    noted           the class has a head that the crate does not know, or the numbers differ, as a note says
    fails           transformers does not read it, or cannot run it (with `ours`: what the program does)
    SILENT          the numbers differ from those of the attention that transformers chooses: a fault
    UNNAMED         the program refuses without the key's name: a fault
    BLIND           transformers reads or runs none of the values that were tried: nothing is known about the key
"""

import start  # first: it lets the others be found

import fnmatch
import json
import sys
from pathlib import Path

import transformers

from fixtures.families import FAMILIES, Drive
from fixtures.torch_stack import STACKS
from sweep.keys import ABSENT, changed, changes, default, is_strange, without
from sweep.subject import Failed, Judge, Subject, differ, same, scratch

HEADS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM", "ForMultipleChoice"),
    *("ForNextSentencePrediction", "ForPreTraining", "ForImageClassification", "LMHeadModel", "ForCausalLM", "ForConditionalGeneration"),
)

# In place of a key, in a record of the model itself.
UNCHANGED = "(unchanged)"
# Keys that the crate takes to change nothing.
HARMLESS = {
    line.split("=")[0].split("/")[-1]
    for line in (Path(__file__).resolve().parents[2] / "src/checkpoint/keys/harmless.txt").read_text().splitlines()
    if line and line[0] not in "#="
}


def is_harmless(path: str) -> bool:
    """Whether the crate takes a key, or its name alone, to change nothing."""
    return path in HARMLESS or path.split(".")[-1] in HARMLESS


def classes(model_type: str, which: str) -> list[str]:
    """The usual class of a model type; the `others` with a head that the crate may know, and the one without; or `all`."""
    usual = FAMILIES[model_type].head or "AutoModel"
    if which == "usual":
        return [usual]
    base = transformers.AutoModel._model_mapping[type(transformers.AutoConfig.for_model(model_type))]
    stem = (base[0] if isinstance(base, tuple) else base).__name__.removesuffix("Model")
    named = [stem + head for head in HEADS if hasattr(transformers, stem + head)]
    others = dict.fromkeys(name for name in ["AutoModel", *named] if name != usual)
    return [*others] if which == "others" else [usual, *others]


def sweep(subject: Subject, names: str, pattern: str, most: int):
    """A record for each change of a key."""
    described = subject.described(names)
    with scratch() as directory:
        folder = Path(directory)
        base = subject.judged(folder, described, None)
        ours, said = subject.ours(folder, base.inputs)
        if ours and not same(ours, base.usual) and same(ours, base.composed) and "(as with \"eager\")" in said:
            yield {"path": UNCHANGED, "verdict": "noted", "attentions": "differ", "said": said[:300]}
            subject.attention = "eager"  # which is followed: the judge of all changes
            base = subject.judged(folder, described, None)
        if ours is None or not same(ours, base.usual):
            is_noted = "\"architectures\"" in said
            path = "architectures" if is_noted else UNCHANGED
            yield {"path": path, "verdict": "noted" if is_noted else "SILENT" if ours else "UNNAMED", "said": said[:300]}
            return
        config = transformers.AutoConfig.for_model(subject.model_type, **FAMILIES[subject.model_type].sizes)
        tried, single, together = {}, [], {}
        for path, value in [*without(described), *changes(config, described)]:
            if not fnmatch.fnmatch(path, pattern) or tried.get(path, 0) >= most:
                continue
            tried[path] = tried.get(path, 0) + (value != ABSENT)
            if value != ABSENT and is_strange(config, path):
                together.setdefault(path, value)
            elif value != ABSENT and is_harmless(path) and path not in together:
                together[path] = value
            else:
                single.append((path, fitted(value, config)))
        at_once, others = unchanged(subject, folder, described, [*together.items()], base)
        yield from at_once
        single += others
        failed = {}
        for path, value in single:
            record = verdict(subject, folder, changed(described, path, value), path, base, value)
            if value != ABSENT:
                failed[path] = failed.get(path, True) and record["verdict"] == "fails"
            yield {"path": path, "value": value, **record}
        yield from ({"path": path, "verdict": "BLIND"} for path, is_blind in failed.items() if is_blind)


def unchanged(subject: Subject, folder: Path, described: dict, changes: list, base: Judge) -> tuple[list[dict], list]:
    """Records of the changes that change nothing, tried all at once, then by halves; and the changes that must be tried alone."""
    if len(changes) < 2:
        return [], changes
    contents = described
    for path, value in changes:
        contents = changed(contents, path, value)
    record = verdict(subject, folder, contents, ", ".join(path for path, _ in changes), base)
    if record["verdict"] == "same" and not record["changed"]:
        return [{"path": path, "value": value, **record} for path, value in changes], []
    if len(changes) < 5:
        return [], changes
    half = len(changes) // 2
    (one, left), (other, also) = (unchanged(subject, folder, described, part, base) for part in (changes[:half], changes[half:]))
    return one + other, left + also


def fitted(value, config):
    """Factors of a rotation, as many as the configuration has."""
    if not isinstance(value, dict) or "SHORT" not in value.values():
        return value
    config = config.get_text_config()
    width = default(config, "head_dim") or config.hidden_size // config.num_attention_heads
    short = [1.0 + 0.25 * i for i in range(width // 2)]
    lists = {"SHORT": short, "LONG": [2 * one for one in short]}
    return {key: lists.get(one, one) if isinstance(one, str) else one for key, one in value.items()}


def verdict(subject: Subject, folder: Path, described: dict, path: str, base: Judge, value=None) -> dict:
    """What comes of one change. Without a key, the sizes of the class are too large: only those are run that leave all shapes."""
    try:
        judge = subject.judged(folder, described, base.inputs, value == ABSENT)
        judge.usual
    except (Failed, ValueError) as failed:  # it has no such attention
        ours, said = subject.ours(folder, base.inputs)
        return {"verdict": "fails", "why": str(failed), "ours": "runs" if ours else said.split("\n")[0][:200]}
    ours, said = subject.ours(folder, judge.inputs)
    if not all(tensor.isfinite().all() for tensor in judge.usual.values()):
        return {"verdict": "fails", "why": "its results are not finite", "ours": "runs" if ours else said.split("\n")[0][:200]}
    record = {"changed": not same(judge.usual, base.usual)} | ({"notes": said[:300]} if said and ours else {})
    if ours is None:
        key = path.split(".")[-1]
        # By a key that it contradicts, by its value, or a text too long for the positions.
        of_file = "config.json: " in said and ("invalid configuration" in said or 'key "' in said) or "positions that the model has" in said or "positions; shorten the text" in said
        is_named = of_file or key.removeprefix("add_").replace("_", "") in said.replace("_", "").replace("-", "") or any(part in said for part in ("rope_type", "\"type\"") if "rope" in path)
        return record | {"verdict": "refused" if is_named else "UNNAMED", "said": said.split("\n")[0][-300:]}
    # Where transformers' two attentions differ, the program follows one of them, and says so.
    if not same(judge.composed, judge.usual):
        record["attentions"] = "differ"
    elif same(ours, judge.usual):
        return record | {"verdict": "same"}
    if path.split(".")[-1] in said:
        return record | {"verdict": "noted"}
    return record | {"verdict": "SILENT", "apart": differ(ours, judge.usual), "lacks": sorted(judge.usual.keys() - ours.keys())}


def main() -> None:
    parser = start.options(__doc__, "lines of JSON are added here")
    parser.add_argument("model_types", nargs="*")
    parser.add_argument("--classes", default="usual", choices=["usual", "others", "all"])
    parser.add_argument("--most", type=int, default=99, help="so many values of a key, beside its absence")
    args = parser.parse_args()
    runs = [name for name, family in FAMILIES.items() if name not in STACKS and all(part.drive is not Drive.WAVE for part in family.parts)]
    out = args.out.open("a") if args.out else sys.stdout
    for model_type in args.model_types or runs:
        for name in classes(model_type, args.classes):
            for names in ("v5", "hub") if FAMILIES[model_type].rope_names and name == classes(model_type, "usual")[0] else ("v5",):
                subject = Subject(model_type, name, args.program.resolve())
                counts = {}
                try:
                    pattern = "*ro[pt]*" if names == "hub" and args.keys == "*" else args.keys
                    for record in sweep(subject, names, pattern, args.most):
                        counts[record["verdict"]] = counts.get(record["verdict"], 0) + 1
                        print(json.dumps({"model_type": model_type, "class": name, "names": names, **record}), file=out, flush=True)
                except Exception as failed:  # the class cannot be made, or the fixtures have no inputs of it
                    print(json.dumps({"model_type": model_type, "class": name, "names": names, "verdict": "NO BASE", "why": repr(failed)[:200]}), file=out, flush=True)
                print(model_type, name, names, counts, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
