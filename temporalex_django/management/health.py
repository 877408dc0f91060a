"""Say whether the workers of this machine are well: for systemd, Kubernetes and people; no database, no server.

Ends with 1 when one of them is not, or none is there. Each rewrites a small file twice a second, which is read here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.conf import get_settings
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.health import Check, Health, HealthVerdict, judge_health, read_health_files
from temporalex_django.management import exits, printing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """One worker. ``lease``: for how many seconds its lease is good; ``guardian``: the pid of who ends it if it hangs.

    ``connections``: the most that it opens to the database. ``counters`` of its own.
    """

    worker: str
    pid: int
    guardian: int
    kind: str
    state: str
    queues: Sequence[str]
    started: bool
    live: bool
    ready: bool
    why: Sequence[str]
    lease: float
    runs: int
    activities: int
    turns: int
    connections: int
    counters: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSaid:
    """``well``: there is a worker, and all pass what was ``checked``."""

    well: bool
    checked: str
    workers: Sequence[WorkerHealth]


output = HealthSaid


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parser.add_argument(
        "--check",
        choices=get_args(Check),
        default="ready",
        help="started: it has registered; live: its turns, maintenance and guardian go on; ready: it has a lease and takes work, too (the default)",
    )
    parser.add_argument("--pid", type=int, metavar="PID", help="of this worker alone: its pid, or that of its guardian")
    printing.add_json(parser)


def handle(command: BaseCommand, *, check: Check, pid: int | None, json: bool, **_: Any) -> None:
    """Reads files only."""
    limit = get_settings().HEALTH_SECONDS
    now = time.monotonic()
    found = [
        _said(said, judge_health(said, now=now, limit=limit, guardian_at=guardian_at), now=now)
        for said, guardian_at in read_health_files(DjangoStorage().domain)
        if pid in (None, said.pid, said.guardian)
    ]
    well = bool(found) and all(getattr(one, check) for one in found)
    if json:
        printing.document(command, HealthSaid(well=well, checked=check, workers=found))
    else:
        for one in found:
            said = one.state if one.ready else "; ".join(one.why)
            printing.write(command, f"worker {one.pid} ({one.worker}), queues {', '.join(one.queues)}: {said}")
    if not well:
        raise CommandError(_sentence(check, found), returncode=exits.FOUND)


def _sentence(check: Check, found: Sequence[WorkerHealth]) -> str:
    if not found:
        text = "no worker is there that works on this database under this user"
        return exits.sentence(
            text, "Start one: manage.py temporalex worker; ask on its machine, as the user it runs as."
        )
    bad = [one for one in found if not getattr(one, check)]
    text = f"{len(bad)} of {len(found)} workers: not {check}"
    return exits.sentence(
        text, "See above; the log of the worker says more, and manage.py temporalex doctor of the database."
    )


def _said(said: Health, verdict: HealthVerdict, *, now: float) -> WorkerHealth:
    return WorkerHealth(
        worker=said.worker,
        pid=said.pid,
        guardian=said.guardian,
        kind=said.kind,
        state=said.state,
        queues=said.queues,
        started=verdict.started,
        live=verdict.live,
        ready=verdict.ready,
        why=verdict.problems,
        lease=round(max(0.0, said.lease_until - now), 1),
        runs=said.runs,
        activities=said.activities,
        turns=said.turns,
        connections=said.connections,
        counters=said.counters,
    )
