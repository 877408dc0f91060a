"""``day``: carts of the demo, with web server, provider, cluster and customers on this machine at full speed."""

from __future__ import annotations

import json
import shutil
import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import process
from benchmarks.server import ROOT

_DAY: Final = ROOT / "example_project" / "data" / "2017-06-14"
#: Seconds of the day in one real second, and a short time to confirm: nothing has to wait for customers.
_SPEED: Final = "20000"


def run(database: str, carts: int) -> dict[str, Any]:
    """Measure carts/s over the first ``carts`` of the day, times of updates, and the exit code (0: it reconciles)."""
    with tempfile.TemporaryDirectory(prefix="tx-day-") as folder:
        report = Path(folder) / "report.json"
        command = [
            "demo",
            "--check",
            "--flow",
            "cart",
            "--speed",
            _SPEED,
            "--confirm-within",
            "1",
            "--json",
            str(report),
        ]
        environment = {"DJANGO_SETTINGS_MODULE": "example_project.settings", "DATABASE_URL": "", "DEMO_DB": database}
        with process("manage.py", *command, "--day", str(_first(carts, Path(folder))), **environment) as child:
            said, _ = child.communicate()
        if not report.exists():
            raise RuntimeError(said[-2_000:])
        found = json.loads(report.read_text(encoding="utf-8"))
    return {
        "carts": found["completed"],
        "carts_per_s": found["runs_per_second"],
        "update_s": found["update_seconds"],
        "status": child.returncode,
    }


def _first(carts: int, folder: Path) -> Path:
    """Write a day of so many baskets, with its products beside it, and return its path."""
    shutil.copy(_DAY / "products.csv", folder)
    head, *lines = (_DAY / "basket_lines.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    wanted = list(dict.fromkeys(_basket(line) for line in lines))[:carts]
    short = folder / "basket_lines.csv"
    short.write_text("".join([head, *takewhile(lambda line: _basket(line) in wanted, lines)]), encoding="utf-8")
    return short


def _basket(line: str) -> str:
    return line.partition(",")[0]
