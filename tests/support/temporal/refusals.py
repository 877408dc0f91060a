"""Cases that the host of a cluster refuses, each by name with a reason of a closed list.

``refused.json`` has the names; one with "(evicted)" is refused where no run is kept in memory. A refused case that
passes is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

#: The closed list. What it says of each reason is in ``docs/howto/run-on-temporal.md``.
REASONS = {
    "time beside work": "time beside work under way",
    "gap": "update in a gap or behind a busy handler",
    "order in a task": "order of update and signal in a task",
    "closed or unknown": "closed or unknown",
    "order of several": "order of several messages or activities",
    "attempts": "attempts of a timeout",
    "fork and edited input": "fork and edited input",
    "clock": "clock of the test",
    "engine tables": "tables of the engine",
    "operator actions": "operator actions (second part)",
    "second part": "schedules, start options and retry hints (second part)",
}
#: A case with such a reason may pass: the server has an order, which is not always the same.
BY_CHANCE = frozenset({"order of several"})
PAGE = Path(__file__).with_name("refused.json")


class RefusedByTheHost(Exception):
    """The host of a cluster does not have this."""


def refuse(reason: str) -> NoReturn:
    raise RefusedByTheHost(REASONS[reason])


def case_name(nodeid: str, host: str) -> str:
    """The name of a case, without its host: ``test_phase.py::test_a[0]``."""
    name = nodeid.rpartition("tests/acceptance/")[2].split("@")[0]
    function, bracket, parameters = name.partition("[")
    if not bracket:
        return function
    rest = parameters.removesuffix("]").removeprefix(host).removeprefix("-")
    return f"{function}[{rest}]" if rest else function


def refused() -> dict[str, str]:
    """The reason of each refused case, by name."""
    by_reason: dict[str, list[str]] = json.loads(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    return {name: reason for reason, names in by_reason.items() for name in names}
