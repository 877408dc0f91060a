"""The benchmarks that need no server run, and print what their notes name; how fast is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--count", "20", "--sizes", "2,4", "--rounds", "1")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", "run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_those_in_process_print_their_figures(tmp_path: Path) -> None:
    done = run("--only", "replay,steps,fan,long,memory,guard", "--gc", "worker", *TINY, "--json", str(tmp_path / "out"))

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures == json.loads((tmp_path / "out").read_text(encoding="utf-8"))
    assert set(figures) == {"machine", "replay", "steps", "fan", "long", "memory", "guard"}
    assert figures["steps"]["ours"]["steps_per_s"] > 0
    assert figures["replay"]["ours"]["steps_events_per_s"] > 0
    for name in ("fan", "long"):
        assert set(figures[name]["ours"]) == {"at_once", "one_by_one", "environment"}
        assert set(figures[name]["ours"]["at_once"]) == {"us_at_2", "us_at_4", "growth"}
    assert 0 < figures["memory"]["ours"]["activity_bytes"] < figures["memory"]["ours"]["cart_bytes"]


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    done = run("--only", "replay,stpes")

    assert done.returncode == 2
    assert "no such benchmark: stpes" in done.stderr
    assert "steps" in done.stderr
