"""Prints a crate's public items from rustdoc's JSON, with their signatures: `tests/api.txt` shows a review what changes for users.

    python3 .ci/public_items.py target/doc/candle_blocks.json [--count]

An item is listed in the module that declares or re-exports it; what is re-exported from another package is read from the JSON beside. Hidden items are left out, as in the documentation. `--count` prints the
number of items of each kind instead. The exit status is 3 if the JSON has a version that this program has not been tried with.
"""

import json
import sys
from collections import Counter
from pathlib import Path

# Versions of rustdoc's JSON.
TRIED = {57}


def bounds(all_of: list) -> str:
    return " + ".join(bound_text(bound) for bound in all_of)


def bound_text(bound: dict) -> str:
    if "trait_bound" in bound:
        return {"none": "", "maybe": "?", "maybe_const": ""}[bound["trait_bound"]["modifier"]] + path_text(bound["trait_bound"]["trait"])
    return bound.get("outlives") or "use<..>"


def argument_text(argument: dict | str) -> str:
    if argument == "infer":
        return "_"
    kind, value = next(iter(argument.items()))
    return {"type": type_text, "lifetime": str, "const": lambda c: c["expr"]}[kind](value)


def arguments_text(arguments: dict | None) -> str:
    if not arguments:
        return ""
    kind, value = next(iter(arguments.items()))
    if kind == "parenthesized":
        output = f" -> {type_text(value['output'])}" if value["output"] else ""
        return f"({', '.join(map(type_text, value['inputs']))}){output}"
    if kind != "angle_bracketed":
        return "(..)"
    parts = list(map(argument_text, value["args"]))
    for constraint in value["constraints"]:
        binding = constraint["binding"]
        bound = binding.get("constraint")
        name = constraint["name"] + arguments_text(constraint["args"])
        parts.append(f"{name}: {bounds(bound)}" if bound else f"{name} = {term_text(binding['equality'])}")
    return f"<{', '.join(parts)}>" if parts else ""


def term_text(term: dict) -> str:
    return type_text(term["type"]) if "type" in term else term["constant"]["expr"]


def path_text(path: dict) -> str:
    return path["path"].rsplit("::", 1)[-1] + arguments_text(path["args"])


def type_text(of: dict) -> str:
    kind, value = next(iter(of.items()))
    match kind:
        case "resolved_path":
            return path_text(value)
        case "generic" | "primitive":
            return value
        case "tuple":
            return f"({', '.join(map(type_text, value))}{',' if len(value) == 1 else ''})"
        case "slice":
            return f"[{type_text(value)}]"
        case "array":
            return f"[{type_text(value['type'])}; {value['len']}]"
        case "borrowed_ref":
            lifetime = f"{value['lifetime']} " if value["lifetime"] else ""
            return f"&{lifetime}{'mut ' if value['is_mutable'] else ''}{type_text(value['type'])}"
        case "raw_pointer":
            return f"*{'mut' if value['is_mutable'] else 'const'} {type_text(value['type'])}"
        case "impl_trait":
            return f"impl {bounds(value)}"
        case "dyn_trait":
            traits = [path_text(poly["trait"]) for poly in value["traits"]]
            return "dyn " + " + ".join(traits + [value["lifetime"]] * bool(value["lifetime"]))
        case "qualified_path":
            return f"{type_text(value['self_type'])}::{value['name']}"
        case "function_pointer":
            return f"fn{signature_text(value['sig'])}"
    raise ValueError(f"a type of a kind unknown here: {kind}")


def signature_text(signature: dict) -> str:
    inputs = []
    for name, value in signature["inputs"]:
        text = type_text(value)
        own = {"Self": "self", "&Self": "&self", "&mut Self": "&mut self"}.get(text)
        inputs.append(own if name == "self" and own else f"{name}: {text}")
    output = f" -> {type_text(signature['output'])}" if signature["output"] else ""
    return f"({', '.join(inputs)}){output}"


def generics_text(generics: dict) -> str:
    parts = []
    for parameter in generics["params"]:
        kind, value = next(iter(parameter["kind"].items()))
        if kind == "type" and not value["is_synthetic"]:
            parts.append(parameter["name"] + (f": {bounds(value['bounds'])}" if value["bounds"] else ""))
        elif kind == "lifetime":
            parts.append(parameter["name"])
        elif kind == "const":
            parts.append(f"const {parameter['name']}: {type_text(value['type'])}")
    return f"<{', '.join(parts)}>" if parts else ""


class Crate:
    def __init__(self, path: Path):
        crate = json.loads(path.read_text())
        self.version, self.root = crate["format_version"], crate["root"]
        self.index, self.paths = crate["index"], crate["paths"]
        self.ids = {(tuple(at["path"]), at["kind"]): identity for identity, at in self.paths.items() if at["crate_id"] == 0}


class Lister:
    def __init__(self, path: Path):
        self.folder, self.crates = path.parent, {}
        self.crate = self.read(path.stem)
        self.lines, self.counts, self.seen = [], Counter(), set()

    def read(self, name: str) -> Crate | None:
        path = self.folder / f"{name}.json"
        if name not in self.crates and path.exists():
            self.crates[name] = Crate(path)
        return self.crates.get(name)

    @property
    def index(self) -> dict:
        return self.crate.index

    def line(self, depth: int, text: str):
        self.lines.append("  " * depth + text)

    def item(self, identity, depth: int, name: str | None = None):
        item = self.index[str(identity)]
        name = name or item["name"]
        kind, inner = next(iter(item["inner"].items()))
        match kind:
            case "use":
                self.use(inner, depth)
            case "module":
                self.line(depth, f"mod {name}")
                self.children(inner["items"], depth + 1)
            case "function":
                self.counts["functions"] += 1
                words = [word for word in ("const", "unsafe") if inner["header"][f"is_{word}"]]
                self.line(depth, " ".join([*words, f"fn {name}{generics_text(inner['generics'])}{signature_text(inner['sig'])}"]))
            case "struct" | "enum" | "union" | "trait":
                self.counts[kind] += 1
                self.declared(item, name, kind, inner, depth)
            case "struct_field":
                self.line(depth, f"{name}: {type_text(inner)}")
            case "variant":
                self.variant(name, inner["kind"], depth)
            case "constant" | "assoc_const":
                self.line(depth, f"const {name}: {type_text(inner['type'])}")
            case "assoc_type":
                self.line(depth, f"type {name}")
            case "type_alias":
                self.line(depth, f"type {name}{generics_text(inner['generics'])} = {type_text(inner['type'])}")
            case "macro" | "proc_macro":
                self.line(depth, f"macro {name}")
            case "static":
                self.line(depth, f"static {name}: {type_text(inner['type'])}")
            case _:
                raise ValueError(f"an item of a kind unknown here: {kind}")

    def use(self, inner: dict, depth: int):
        here, identity = self.crate, str(inner["id"])
        if identity not in self.index and identity in here.paths:
            at = here.paths[identity]
            if other := self.read(at["path"][0]):
                self.crate, identity = other, other.ids.get((tuple(at["path"]), at["kind"]), "")
        target = self.index.get(identity)
        if target is None:
            self.line(depth, f"use {inner['source']}{'::*' if inner['is_glob'] else ''}")
        elif inner["is_glob"]:
            self.children(target["inner"]["module"]["items"], depth)
        elif (id(self.crate), str(target["id"])) in self.seen:
            self.line(depth, f"use {inner['source']}")
        else:
            self.item(identity, depth, inner["name"])
        self.crate = here

    def children(self, items: list, depth: int):
        # By name, because moving an item within a file changes nothing for users.
        def key(identity):
            item = self.index[str(identity)]
            kind, inner = next(iter(item["inner"].items()))
            is_module = kind == "module" or kind == "use" and self.crate.paths.get(str(inner["id"]), {}).get("kind") == "module"
            return (is_module, inner["name"] if kind == "use" else item["name"] or "", str(identity))

        for identity in sorted((i for i in items if str(i) in self.index), key=key):
            self.item(identity, depth)

    def variant(self, name: str, kind: dict | str, depth: int):
        if kind == "plain":
            self.line(depth, name)
        elif "tuple" in kind:
            fields = (self.index[str(i)]["inner"]["struct_field"] if i is not None else {"generic": "_"} for i in kind["tuple"])
            self.line(depth, f"{name}({', '.join(map(type_text, fields))})")
        else:
            fields = (self.index[str(i)] for i in kind["struct"]["fields"])
            texts = (f"{field['name']}: {type_text(field['inner']['struct_field'])}" for field in fields)
            self.line(depth, f"{name} {{ {', '.join(texts)} }}")

    def declared(self, item: dict, name: str, kind: str, inner: dict, depth: int):
        self.seen.add((id(self.crate), str(item["id"])))
        if name.endswith("Config") and kind in ("struct", "enum"):
            self.counts["configurations"] += 1
        open_ended = "#[non_exhaustive] " if "non_exhaustive" in item["attrs"] else ""
        supertraits = f": {bounds(inner['bounds'])}" if kind == "trait" and inner["bounds"] else ""
        self.line(depth, f"{open_ended}{kind} {name}{generics_text(inner['generics'])}{supertraits}")
        if kind == "trait":
            for identity in inner["items"]:
                self.item(identity, depth + 1)
            return
        if kind == "enum":
            for identity in inner["variants"]:
                self.item(identity, depth + 1)
        elif "plain" in inner["kind"]:
            for identity in inner["kind"]["plain"]["fields"]:
                self.item(identity, depth + 1)
        elif "tuple" in inner["kind"]:
            fields = [self.index[str(i)]["inner"]["struct_field"] for i in inner["kind"]["tuple"] if i is not None]
            if fields:
                self.line(depth + 1, f"({', '.join(map(type_text, fields))})")
        traits = []
        for identity in inner["impls"]:
            block = self.index[str(identity)]["inner"]["impl"]
            if block["trait"] is None:
                before = self.counts["functions"]
                for child in block["items"]:
                    if str(child) in self.index:
                        self.item(child, depth + 1)
                self.counts["methods"] += self.counts["functions"] - before
                self.counts["functions"] = before
            elif not block["is_synthetic"] and block["blanket_impl"] is None:
                subject = type_text(block["for"])
                text = path_text(block["trait"])
                traits.append(text if subject.split("<")[0] == name else f"{text} for {subject}")
        if traits:
            self.line(depth + 1, f"impl {', '.join(sorted(traits))}")


def main():
    lister = Lister(Path(sys.argv[1]))
    if lister.crate.version not in TRIED:
        print(f"rustdoc writes version {lister.crate.version} of its JSON; tried are {sorted(TRIED)}", file=sys.stderr)
        sys.exit(3)
    lister.children(lister.index[str(lister.crate.root)]["inner"]["module"]["items"], 0)
    if "--count" in sys.argv:
        print(", ".join(f"{count} {kind}" for kind, count in sorted(lister.counts.items())))
    else:
        print("\n".join(lister.lines))


main()
