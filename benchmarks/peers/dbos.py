"""DBOS in a process of its own, on the same server."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

from scripts.embedded_postgres import die_with_parent


def one(count: int) -> dict[str, Any]:
    if importlib.util.find_spec("dbos") is None:
        raise RuntimeError("the package dbos is not installed (dependency group bench)")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.dbos_one", str(count), os.environ["BENCH_PEER_URL"]],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=die_with_parent,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it failed without a word")
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures
