"""Draws README's table of speed as docs/speed.svg: for each row a bar of every library, as long as its time.

    python3 benches/peers/picture.py           writes the picture
    python3 benches/peers/picture.py --check   fails if the picture is another
"""

import html
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "speed.svg"
WIDTH, LEFT, LONGEST, LINE = 860, 310, 420, 17
COLORS = ["#c2410c", "#64748b", "#a8b3c2"]


def table() -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Returns the libraries, and the rows with the text in each library's column."""
    section = (ROOT / "README.md").read_text().split("\n## Speed\n", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return head[1:], [(row[0], row[1:]) for row in rows]


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(words)}</text>'


def picture() -> str:
    libraries, rows = table()
    parts, y = [], 34
    x = LEFT
    for library, color in zip(libraries, COLORS, strict=True):
        parts.append(f'<rect x="{x}" y="{y - 10}" width="11" height="11" fill="{color}"/>')
        parts.append(text(x + 17, y, library))
        x += 150
    parts.append(text(16, y, "milliseconds: shorter is faster", weight="bold"))
    y += 14
    for name, cells in rows:
        y += 12
        times = [(float(cell.split()[0]), cell, color) for cell, color in zip(cells, COLORS, strict=True) if cell]
        slowest = max(time for time, _, _ in times)
        parts.append(text(LEFT - 14, y + LINE * len(times) / 2 + 4, name, "end"))
        for time, cell, color in times:
            width = round(LONGEST * time / slowest, 1)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{LINE - 4}" fill="{color}"/>')
            parts.append(text(LEFT + width + 6, y + LINE - 6, cell))
            y += LINE
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 16}" font-family="sans-serif" font-size="12" fill="#1f2937">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if not PICTURE.exists() or PICTURE.read_text() != picture():
            sys.exit("docs/speed.svg is not README's table: run benches/peers/picture.py")
    else:
        PICTURE.write_text(picture())
