"""``listing``: time and memory of ``temporalex list --json`` over many runs, in a process of its own."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import process

#: Lines before the memory is first measured; by then everything that is loaded only once is loaded.
_FIRST: Final = 10_000


def run(runs: int) -> dict[str, Any]:
    """Measure lines, seconds, and megabytes of the process: after the first lines and at most."""
    from temporalex_django.models import Instance

    if Instance.objects.count() < runs:
        from benchmarks.million import build

        build(runs)
    began, lines, size, first, most = time.perf_counter(), 0, 0, 0.0, 0.0
    with process("-m", "django", "temporalex", "list", "--json", "--skip-checks", PYTHONUNBUFFERED="") as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines, size = lines + 1, size + len(line)
            if lines == min(_FIRST, runs):
                first = _megabytes(child.pid, "VmRSS")
            if lines % _FIRST == 0 or lines == runs:
                most = _megabytes(child.pid, "VmHWM")
        ended = child.wait(30)
    seconds = time.perf_counter() - began
    return {
        "runs": runs,
        "lines": lines,
        "status": ended,
        "seconds": round(seconds, 1),
        "lines_per_s": round(lines / seconds),
        "megabytes_printed": round(size / 1e6),
        "memory_mb_at_first": first,
        "memory_mb_at_most": most,
    }


def _megabytes(pid: int, what: str) -> float:
    """Return a value of the process's status file in megabytes (Linux)."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return round(int(found[1]) / 1024, 1)
