"""How PostgreSQL plans what starts, signals, updates and the turns of a worker ask: into NOTES.md.

Each statement is explained where it is sent, with its own parameters and rows, and rolled back; then it is sent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from benchmarks import server

_BEGIN: Final = "<!-- plans: `python -m benchmarks plans` writes what follows -->"
_END: Final = "<!-- end of the plans -->"
_RUNS: Final = 200
_TURNS: Final = f"turns of a worker over {_RUNS} runs of one activity"


class Explainer:
    """An execute wrapper of Django. Of statements that come several times it keeps the plan of the last."""

    def __init__(self) -> None:
        self.stage = ""
        self.plans: dict[tuple[str, str], list[str]] = {}
        self.times: Counter[tuple[str, str]] = Counter()

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any) -> Any:
        if isinstance(sql, str) and re.match(r"\s*(with|select|insert|update|delete)\b", sql) and "temporalex_" in sql:
            self.times[self.stage, sql] += 1
            self.plans[self.stage, sql] = _explained(context["connection"].connection, sql, params)
        return execute(sql, params, many, context)


def write(closed: int) -> None:
    """Beside so many closed runs of a new database."""
    with server.database("postgres"):
        plans = _planned(closed)
    notes = server.ROOT / "benchmarks" / "NOTES.md"
    text = notes.read_text(encoding="utf-8")
    kept = text.partition(_BEGIN)[0].rstrip()
    rest = text.partition(_END)[2].lstrip()
    notes.write_text("\n\n".join(part for part in (kept, _BEGIN, _page(plans, closed), _END, rest) if part) + "\n")


def _planned(closed: int) -> dict[tuple[str, str], list[str]]:
    from django.db import connection

    from benchmarks import million
    from benchmarks.app.workflows import One, Parked
    from benchmarks.backlog import queue
    from temporalex_django.workers.loop import run_until_idle

    million.build(closed)
    explainer = Explainer()
    with connection.cursor() as cursor:
        cursor.execute(
            "update temporalex_chain set due_at = null; update temporalex_activity_task set due_at = now() + interval '1 year'"
        )
    handle = Parked.start()
    run_until_idle()
    queue(One, _RUNS)
    with connection.cursor() as cursor:
        cursor.execute("analyze")
    with connection.execute_wrapper(explainer):
        explainer.stage = "a start"
        One.start()
        explainer.stage = "a signal"
        handle.signal("seen", 1)
        explainer.stage = "an update in the request"
        handle.update("count", 1)
        explainer.stage = _TURNS
        run_until_idle(timeout=90)
    # what a worker asks once it asks when it comes and goes
    return {what: plan for what, plan in explainer.plans.items() if what[0] != _TURNS or explainer.times[what] > 1}


def _explained(connection: Any, sql: str, params: Any) -> list[str]:
    import psycopg
    from psycopg.pq import TransactionStatus

    inside = connection.info.transaction_status != TransactionStatus.IDLE
    cursor = psycopg.Cursor(connection)
    cursor.execute("savepoint plans" if inside else "begin")
    try:
        cursor.execute(f"explain (analyze, buffers) {sql}", params)
        lines = [row[0] for row in cursor.fetchall()]
        planning = lines.index("Planning:") if "Planning:" in lines else len(lines)
        return lines[:planning] + [line for line in lines[planning:] if line.startswith("Execution")]
    finally:
        cursor.execute("rollback to savepoint plans" if inside else "rollback")


def _page(plans: dict[tuple[str, str], list[str]], closed: int) -> str:
    parts = [
        "## Plans of hot statements",
        f"EXPLAIN (ANALYZE, BUFFERS) beside {closed:,} runs, at the last time that each was sent. Numbers of a plan are milliseconds.",
    ]
    stage = ""
    for (when, sql), lines in plans.items():
        if when != stage:
            stage = when
            parts.append(f"### {stage}")
        parts.append("```text\n" + "\n".join([_short(sql), *("    " + line for line in lines)]) + "\n```")
    return "\n\n".join(parts)


def _short(sql: str, most: int = 400) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= most else f"{text[:most]} …"
