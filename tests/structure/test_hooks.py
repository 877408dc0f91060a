"""The hooks before a commit and a push are what ``make lint`` runs, neither more nor less."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
STEPS = re.findall(r'^step "([\w-]+)"', (ROOT / "scripts" / "lint.sh").read_text(encoding="utf-8"), re.MULTILINE)


def test_each_check_is_a_hook_and_each_hook_a_check() -> None:
    assert len(STEPS) >= 9
    assert sorted(re.findall(r"^ +entry: scripts/lint\.sh ([\w-]+)$", HOOKS, re.MULTILINE)) == sorted(STEPS)
    assert HOOKS.count("- id: ") == len(STEPS)


def test_a_check_that_is_not_there_is_a_failure() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "lint.sh", "no-such-check"], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.returncode == 2
    assert "no-such-check" in done.stderr
