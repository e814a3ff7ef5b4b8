"""The table of what the program refuses by the name of a key, in docs/keys.md, from the lines that `config.py` wrote.

    python weights/sweep/table.py FILE ...

Of two lines for one change, the later counts. What the table has already is kept, unless the lines contradict it: a run may try
fewer values than those before it. The counts, which the text above the table names, are printed.
"""

import collections
import json
import re
import sys
from pathlib import Path

ABSENT = "ABSENT"

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/keys.md"
# So many families, and a key is said of all of them at once.
MANY = 12
SEVERAL = f"more than {MANY} model types"
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


def table(records: list[dict], document: str) -> str:
    """What is refused by name: the key, the values, the model types."""
    by_key = collections.defaultdict(lambda: ({}, {}))
    for line in document.splitlines():
        if line.startswith("| `"):
            path, values, types = (re.findall(r"`(.*?)`(?=, `|$)", cell.strip()) or [cell.strip()] for cell in line.strip("|").split(" | "))
            by_key[path[0].strip("`")] = (dict.fromkeys(values), dict.fromkeys(types))
    follows = collections.defaultdict(set)
    for record in records:
        path = re.sub("(text|vision)_config\\.", "", record.get("path") or "")
        value = json.dumps(record.get("value"))
        value = value if len(value) < 40 else value[:36] + " .."
        if record["verdict"] == "refused" and record["value"] != ABSENT:
            values, types = by_key[path]
            values[value] = None
            types[record["model_type"]] = None
        elif record["verdict"] == "same":
            follows[path, record["model_type"]].add(value)
    lines = ["| key | values | model types |", "|---|---|---|"]
    refused = {(re.sub("(text|vision)_config\\.", "", record["path"]), record["model_type"]) for record in records if record["verdict"] == "refused"}
    for path, (values, types) in sorted(by_key.items()):
        # All that was refused is followed now.
        types = [name for name in types if (path, name) in refused or not {*values} <= follows[path, name]]
        if not types:
            continue
        is_many = len(types) > MANY or SEVERAL in types
        named = SEVERAL if is_many else ", ".join(f"`{name}`" for name in sorted(types))
        lines.append(f"| `{path}` | {', '.join(f'`{value}`' for value in sorted(values)[:4])} | {named} |")
    return "\n".join(lines)


if __name__ == "__main__":
    found = read(sys.argv[1:])
    for record in found:
        if record["verdict"] in ("SILENT", "UNNAMED", "NO BASE"):
            print(record["model_type"], record.get("path"), record.get("value"), record["verdict"])
    print(tried(found))
    document = DOCUMENT.read_text()
    prose, _, _ = document.partition("| key | values |")
    DOCUMENT.write_text(prose + table(found, document) + "\n")
