"""The table of what the program refuses by the name of a key: docs/keys.md, of the lines that `config.py` wrote.

    python weights/sweep/table.py FILE ...

Of two lines for one change, the later counts.
"""

import collections
import json
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/keys.md"
# So many families, and a key is said of all of them at once.
MANY = 12
HEAD = """# Keys of config.json

This page is for readers whose `config.json` is refused, or who want to know what happens to a key. Every key is followed as transformers follows it, or refused by its name. A key that nothing reads, and that is not
[known to change nothing](../src/checkpoint/harmless_keys.txt), is listed in `LoadReport::unread_keys` and in a note from the program.

The same is true for `tokenizer_config.json`. For many tokenizer classes, transformers reads only vocabulary and merges from `tokenizer.json`, and builds the
normalizer, pre-tokenizer, decoder and post-processor from keys in `tokenizer_config.json`, or from the defaults of the class.
[classes.json](../src/text/tokenizer_class/classes.json) holds these parts. The class is chosen as in transformers, by
`tokenizer_class` and the model type. For other classes, a note names the keys, and `tokenizer.json` is followed.

ViT-MAE's `mask_ratio` is not followed: every patch is read, in its order, as with 0. transformers masks patches at random.

The table lists the refused values. `weights/sweep/config.py` found them: it changes one key at a time on small random models, and compares the program with transformers. It changes the keys of
transformers' configuration classes and their base classes, and keys that occur in shared code or in published files.
{tried}

"""


def read(paths: list[str]) -> list[dict]:
    """The last record of each change."""
    last = {}
    for path in paths:
        for line in Path(path).read_text().splitlines():
            record = json.loads(line)
            at = (record["model_type"], record["class"], record["names"], record.get("path"), json.dumps(record.get("value")))
            if record["verdict"] == "UNNAMED" and 'key "' in record["said"]:
                record["verdict"] = "refused"  # by a key that it contradicts
            if record["verdict"] in ("NO BASE", "BLIND"):
                continue  # nothing was changed, or nothing came of it
            last[at] = record
    return list(last.values())


def tried(records: list[dict]) -> str:
    """How much was tried, and what came of it."""
    counts = collections.Counter(record["verdict"] for record in records)
    changed = sum(bool(record.get("changed")) for record in records if record["verdict"] == "same")
    types = len({record["model_type"] for record in records})
    keys = len({record["path"] for record in records if record.get("path")})
    classes = len({record["class"] if record["class"] != "AutoModel" else record["model_type"] for record in records})
    return (
        f"In {len(records):,} changes to {keys} keys, with {types} model types and {classes} classes, {counts['same']:,} gave transformers'\n"
        f"results ({changed:,} of them changed by the key), {counts['refused']} were refused by name, {counts['UNNAMED']} without it\n"
        f"(a size of 0), and {counts['fails']:,} fail in transformers too. {counts['noted']} classes have a head that the crate does not have; a note says so."
    )


def table(records: list[dict]) -> str:
    """What is refused by name: the key, the values, the model types."""
    by_key = collections.defaultdict(lambda: (set(), set()))
    for record in records:
        if record["verdict"] == "refused":
            path = record["path"].replace("text_config.", "").replace("vision_config.", "")
            values, types = by_key[path]
            value = json.dumps(record["value"])
            values.add(value if len(value) < 40 else value[:36] + " ..")
            types.add(record["model_type"])
    lines = ["| key | values | model types |", "|---|---|---|"]
    for path, (values, types) in sorted(by_key.items()):
        named = ", ".join(f"`{name}`" for name in sorted(types)) if len(types) <= MANY else f"{len(types)} model types"
        lines.append(f"| `{path}` | {', '.join(f'`{value}`' for value in sorted(values)[:4])} | {named} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = read(sys.argv[1:])
    for record in found:
        if record["verdict"] in ("SILENT", "UNNAMED", "NO BASE"):
            print(record["model_type"], record.get("path"), record.get("value"), record["verdict"])
    DOCUMENT.write_text(HEAD.format(tried=tried(found)) + table(found) + "\n")
