"""Try the table of public arguments: each test must fail if its argument has no effect.

``python scripts/arguments.py [OWNER…]``.

It runs pytest for each argument, on SQLite; all of them take some minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "structure" / "public_arguments.toml"


def survives(owner: str, name: str, test: str) -> bool:
    """Return True if the test passes without the argument. A test with its own processes is not tried."""
    if test.startswith("faults/"):
        return False
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.dropping",
        "-p",
        "no:cacheprovider",
        "-x",
        "-q",
        f"tests/{test}",
    ]
    env = {**os.environ, "TX_DROP": f"{owner}:{name}", "TEST_DB": os.environ.get("TEST_DB", "sqlite")}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=120, check=False).returncode in (
        0,
        5,
    )


def main(owners: list[str]) -> int:
    """Return the number of arguments that no test needs."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    table.pop("without effect")
    found = 0
    for owner, tests in table.items():
        for test, names in tests.items() if not owners or owner in owners else ():
            for name in names:
                if survives(owner, name, test):
                    found += 1
                    print(f"{owner}: {test} passes without {name}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
