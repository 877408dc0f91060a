"""The plans that PostgreSQL makes for starts, signals, updates and the turns of a worker, written into NOTES.md.

Each statement is explained where it is sent, with its own parameters and rows, and rolled back; then it is sent.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

from benchmarks import million, server
from benchmarks.backlog import queue
from benchmarks.grown import ABSENT, NAME, counted, on, there

_BEGIN: Final = "<!-- plans: `python -m benchmarks plans` writes what follows -->"
_END: Final = "<!-- end of the plans -->"
_RUNS: Final = 200
_TURNS: Final = f"turns of a worker over {_RUNS} runs of one activity"
_MESSAGES: Final = f"turns of another worker, {_RUNS} runs with a signal each"


class Explainer:
    """An execute wrapper of Django. For a repeated statement it keeps the plan of the slowest execution."""

    def __init__(self) -> None:
        self.stage = ""
        self.plans: dict[tuple[str, str], list[str]] = {}
        self.times: Counter[tuple[str, str]] = Counter()

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: Any, context: Any) -> Any:
        if isinstance(sql, str) and re.match(r"\s*(with|select|insert|update|delete)\b", sql) and "temporalex_" in sql:
            self.times[self.stage, sql] += 1
            plan = _explained(context["connection"].connection, sql, params)
            self.plans[self.stage, sql] = max(self.plans.get((self.stage, sql), plan), plan, key=_took)
        return execute(sql, params, many, context)


def write(closed: int, *, grown: bool = False) -> None:
    """Write the plans beside so many closed runs of a new database, or on the one that ``data`` has built."""
    with server.database("postgres", grown=grown):
        if grown and not there():
            sys.exit(ABSENT)
        with on(NAME) if grown else nullcontext():
            if not grown:
                million.build(closed)
                million.never_due()
            plans = _planned()
            beside = counted()
    notes = server.ROOT / "benchmarks" / "NOTES.md"
    text = notes.read_text(encoding="utf-8")
    kept = text.partition(_BEGIN)[0].rstrip()
    rest = text.partition(_END)[2].lstrip()
    notes.write_text("\n\n".join(part for part in (kept, _BEGIN, _page(plans, beside), _END, rest) if part) + "\n")


def _planned() -> dict[tuple[str, str], list[str]]:
    from django.db import connection

    from benchmarks.app.workflows import One, Parked
    from temporalex_django.models import Instance
    from temporalex_django.workers.loop import run_until_idle

    explainer = Explainer()
    handle = Parked.start()
    run_until_idle()
    queue(One, _RUNS)
    with connection.cursor() as cursor:
        cursor.execute("analyze")
    with connection.execute_wrapper(explainer):
        explainer.stage = "a start"
        one = One.start()
        explainer.stage = "a signal"
        handle.signal("seen", 1)
        explainer.stage = "an update in the request"
        handle.update("count", 1)
        explainer.stage = _TURNS
        run_until_idle(timeout=90)
        explainer.stage = "a result"
        one.result()
    queue(Parked, _RUNS)
    run_until_idle(timeout=90)
    for run in Instance.objects.filter(workflow="Parked", status="waiting").order_by("-pk")[:_RUNS]:
        Parked.handle(run.workflow_id).signal("seen", 1)
    with connection.execute_wrapper(explainer):
        explainer.stage = _MESSAGES
        run_until_idle(timeout=90)
    # a worker sends a statement that occurs once in several turns only when it starts or stops
    once = {sql for (stage, sql), times in explainer.times.items() if stage == _TURNS and times == 1}
    return {
        what: plan
        for what, plan in explainer.plans.items()
        if what[0] not in (_TURNS, _MESSAGES) or what[1] not in once
    }


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


def _took(plan: list[str]) -> float:
    """Return the milliseconds of the last line: ``Execution Time: 0.123 ms``."""
    return float(plan[-1].split()[-2])


def _page(plans: dict[tuple[str, str], list[str]], beside: Mapping[str, int]) -> str:
    around = f"{beside['runs']:,} runs and {beside['history_rows']:,} rows of history"
    parts = [
        "## Plans of frequent statements",
        f"EXPLAIN (ANALYZE, BUFFERS) beside {around}, the slowest execution of each statement. Times are in milliseconds.",
    ]
    stage = ""
    for (when, sql), lines in plans.items():
        if when != stage:
            stage = when
            parts.append(f"### {stage}")
        parts.append(
            "```text\n"
            + "\n".join([_cut(" ".join(sql.split()), 400), *("    " + _cut(line, 160) for line in lines)])
            + "\n```"
        )
    return "\n\n".join(parts)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} …"
