"""Check the workers of this machine, for systemd, Kubernetes and people. Uses no database and no server.

The exit status is 1 if a worker fails the check, or if there is no worker. This command reads a small file that
each worker rewrites about once a second.

With --queues, print how many workers each queue of the project needs, for autoscalers. This reads the database.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from django.core.management.base import BaseCommand, CommandError, CommandParser

from temporalex_django.conf import get_settings
from temporalex_django.core.names import counted
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.health import Check, Health, HealthVerdict, judge_health, read_health_files
from temporalex_django.management import outputs as exit_codes
from temporalex_django.management import outputs as printing
from temporalex_django.operations.fleet.stats import QueueDemand, queue_demands


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """The health of one worker.

    ``lease`` is the number of seconds until its lease expires. ``guardian`` is the pid of the process that ends it if
    it hangs; 0 if there is none. ``connections`` is the largest number of connections that it opens to the database.
    ``counters`` are counters of the worker.
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
    """The result of ``health``.

    ``well`` is true if there is a worker and all workers pass the check in ``checked``.
    """

    well: bool
    checked: str
    workers: Sequence[WorkerHealth]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuesSaid:
    """The result of ``health --queues``: the demand of each queue, sorted by name."""

    queues: Sequence[QueueDemand]


class HealthCommand:
    """Check the workers of this machine, for systemd, Kubernetes and people. Uses no database and no server.

    The exit status is 1 if a worker fails the check, or if there is no worker. This command reads a small file that
    each worker rewrites about once a second.

    With --queues, print how many workers each queue of the project needs, for autoscalers. This reads the database.
    """

    output: ClassVar[Any] = HealthSaid

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command ``temporalex health`` to its parser."""
        parser.add_argument(
            "--check",
            choices=get_args(Check),
            default="ready",
            help="started: the worker has registered; live: its turns, maintenance and guardian make progress; "
            "ready: it also has a lease and accepts work (default).",
        )
        parser.add_argument(
            "--pid", type=int, metavar="PID", help="Check only this worker: its pid, or that of its guardian."
        )
        parser.add_argument(
            "--queues",
            action="store_true",
            help="Print how many workers each queue needs, from its lag, backlog, rates and durations. Reads the database.",
        )
        printing.add_json_argument(parser)

    def handle(
        self, command: BaseCommand, *, check: Check, pid: int | None, queues: bool, json: bool, **_: Any
    ) -> None:
        """Print the health of the workers of this machine, from the files that they write; no database is used.

        Raises ``CommandError`` (exit status 1) if a worker fails the check, or if there is none. With ``queues``, print
        the demand of all queues instead.
        """
        if queues:
            _print_queues(command, json=json)
            return
        limit = get_settings().HEALTH_SECONDS
        # All processes of a machine share this clock, and nobody can set it.
        now = time.monotonic()
        outputs = [
            _worker_output(report, judge_health(report, now=now, limit=limit, guardian_at=guardian_at), now=now)
            for report, guardian_at in read_health_files(DjangoStorage().domain)
            if pid in (None, report.pid, report.guardian)
        ]
        # No worker is a failure: a supervisor has to start one.
        is_well = bool(outputs) and all(getattr(worker_output, check) for worker_output in outputs)
        if json:
            printing.print_json(command, HealthSaid(well=is_well, checked=check, workers=outputs))
        else:
            for worker_output in outputs:
                report = worker_output.state if worker_output.ready else "; ".join(worker_output.why)
                if age := worker_output.counters.get("outbox_age"):
                    report += f", the outbox is {age:g} s behind"
                printing.write_line(
                    command,
                    f"worker {worker_output.pid} ({worker_output.worker}), queues {', '.join(worker_output.queues)}: {report}",
                )
        if not is_well:
            raise CommandError(_problem_text(check, outputs), returncode=exit_codes.FINDINGS)


def _print_queues(command: BaseCommand, *, json: bool) -> None:
    """Print how many workers each queue needs. Reads the database; locks nothing."""
    demands = queue_demands()
    if json:
        printing.print_json(command, QueuesSaid(queues=demands))
        return
    for demand in demands:
        printing.write_line(
            command,
            f"queue {demand.queue}: needs {counted(demand.workers_needed, 'worker', 'workers')}, has {demand.workers} (lag {demand.lag:.1f} s, "
            f"due: {counted(demand.due_runs, 'run', 'runs')} and "
            f"{counted(demand.due_activities, 'activity', 'activities')}, running: {demand.running})",
        )


def _problem_text(check: Check, outputs: Sequence[WorkerHealth]) -> str:
    if not outputs:
        text = "this user has no running worker for this database"
        return exit_codes.with_next_step(
            text,
            ("Start one: manage.py temporalex worker. Run this check on the machine of the worker, as the same user."),
        )
    failing = [worker_output for worker_output in outputs if not getattr(worker_output, check)]
    text = f"{len(failing)} of {counted(len(outputs), 'worker', 'workers')} {'is' if len(failing) == 1 else 'are'} not {check}"
    return exit_codes.with_next_step(
        text, "See above. For more, read the log of the worker, or check the database: manage.py temporalex doctor"
    )


def _worker_output(health: Health, verdict: HealthVerdict, *, now: float) -> WorkerHealth:
    return WorkerHealth(
        worker=health.worker,
        pid=health.pid,
        guardian=health.guardian,
        kind=health.kind,
        state=health.state,
        queues=health.queues,
        started=verdict.started,
        live=verdict.live,
        ready=verdict.ready,
        why=verdict.problems,
        lease=round(max(0.0, health.lease_until - now), 1),
        runs=health.runs,
        activities=health.activities,
        turns=health.turns,
        connections=health.connections,
        counters=health.counters,
    )
