"""The pages of the admin under django-unfold, which replaces the admin site of the whole process: in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_admin_under_unfold(tmp_path: Path, chromium: str) -> None:
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--ds=tests.settings_unfold",
        "tests/unfold",
    )
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TX_TEST", "TEST_", "PYTEST_"))},
        "DATABASE_URL": f"sqlite://{tmp_path / 'unfold.sqlite3'}",
        "DJANGO_SETTINGS_MODULE": "tests.settings_unfold",
    }

    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout
