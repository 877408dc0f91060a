"""The example project's own settings, tables and pages, on the database of this lane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.once
def test_the_shop_with_its_own_settings(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--ds=example_project.settings",
        "tests/shop",
        "example_project/invoices/tests.py",
        "example_project/billing/tests.py",
    ]
    database = f"sqlite://{tmp_path / 'shop.sqlite3'}"
    if os.environ.get("TEST_DB") == "postgres":
        database = os.environ["DATABASE_URL"]
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TX_TEST", "TEST_LANE"))},
        "DATABASE_URL": database,
        "SHOP_VAR": str(tmp_path / "var"),
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
    }

    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
