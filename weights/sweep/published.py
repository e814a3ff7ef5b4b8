"""Do configurations as they are published give transformers' numbers?

    python weights/sweep/published.py PROGRAM [NAME ...]

`published_configs.json` has the config.json of much used models, from memory, with all keys that they have on the Hub and with small
sizes. Each becomes a small random model, which transformers and `PROGRAM run` run on the same inputs. One line for each: `same`,
`DIFFERS`, `REFUSED`, or `fails` if transformers cannot run it; and what the program says.
"""

import start  # first: it lets the others be found

import json
import sys
from pathlib import Path

from sweep.subject import Failed, Subject, same, scratch

PUBLISHED = Path(__file__).parents[1] / "published_configs.json"


def verdict(program: Path, config: dict) -> tuple[str, str]:
    subject = Subject(config["model_type"], config["architectures"][0], program)
    with scratch() as directory:
        folder = Path(directory)
        try:
            judge = subject.judged(folder, config, None)
        except Failed as error:
            return "fails", str(error)
        ours, said = subject.ours(folder, judge.inputs)
        if ours is None:
            return "REFUSED", said
        return "same" if same(ours, judge.composed) or same(ours, judge.usual) else "DIFFERS", said


if __name__ == "__main__":
    program, *names = sys.argv[1:]
    for name, config in json.loads(PUBLISHED.read_text()).items():
        if not names or name in names:
            print(name, *verdict(Path(program), config), flush=True)
