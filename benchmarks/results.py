"""The page RESULTS.md from files of ``run --json``: a section per file, with its ratios, goals and figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.goals import FIGURES

PAGE: Final = Path(__file__).with_name("RESULTS.md")
_INTRODUCTION: Final = """# Results

`python -m benchmarks results FILE...` writes this page. [The notes](NOTES.md) describe where the time goes and what was tried. A ratio
compares this package with a peer in the same run on the same machine: ours/peer for rates, peer/ours for times. Each peer works in one
worker process, in the fastest of its documented ways, with as much work as its rate requires. This package records and leases each
activity before it runs. Missed goals are marked."""


def write(files: Sequence[Path], page: Path = PAGE) -> None:
    """Replace the page by the results of these files."""
    parts = [_INTRODUCTION]
    for file in files:
        parts += _section(json.loads(file.read_text(encoding="utf-8")))
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _section(figures: Mapping[str, Any]) -> Iterator[str]:
    machine = figures["machine"]
    known = {"postgres": "PostgreSQL", "sqlite": "SQLite"}[machine["database"]]
    yield f"## {known}, {machine['at']}"
    yield ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items() if name != "at") + "."
    rows = [row for row in FIGURES if row in figures]
    if rows:
        yield _table(["", "figure", "ours", "peer", "its way", "ratio"], _compared(figures, rows))
    if goals := figures.get("goals"):
        marks = {True: "met", False: "**missed**"}
        yield _table(
            ["goal", "target", "measured", ""], ([g["goal"], g["wanted"], g["is"], marks[g["met"]]] for g in goals)
        )
    others = {row: value["ours"] for row, value in figures.items() if isinstance(value, Mapping) and "ours" in value}
    yield (
        "All figures of ours:\n\n```json\n"
        + "\n".join(f"{row}: {json.dumps(value)}" for row, value in others.items())
        + "\n```"
    )


def _compared(figures: Mapping[str, Any], rows: Iterable[str]) -> Iterator[list[Any]]:
    for row in rows:
        path, sides = FIGURES[row], figures[row]
        ours = _figure(sides["ours"], path)
        peers = [name for name, side in sides.items() if name != "ours" and isinstance(side, Mapping)]
        if not peers:
            yield [f"`{row}`", path, ours, "", "", ""]
        for peer in peers:
            theirs = sides[peer]
            ratio = figures["ratios"].get(f"{row}_vs_{peer.replace('-', '_')}", "")
            yield [f"`{row}`", path, ours, f"{peer} {_figure(theirs, path)}", theirs.get("way", ""), ratio]


def _figure(side: Any, path: str) -> Any:
    for what in ("absent", "failed"):
        if what in side:
            return f"{what}: {side[what].splitlines()[-1]}"
    for part in path.split("."):
        side = side.get(part, {}) if isinstance(side, Mapping) else {}
    return side if isinstance(side, (int, float)) else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])
