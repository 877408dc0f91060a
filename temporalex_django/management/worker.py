"""Commands that run a worker and ask how it is."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from temporalex_django.authoring import workflow
from temporalex_django.checks import unapplied_migrations
from temporalex_django.conf import cluster_address, get_settings, uses_cluster
from temporalex_django.contrib.logs import PlainFormatter, facts_of
from temporalex_django.core.names import TABLES, TEMPORAL, counted
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.guardian import StopSignals, supervise
from temporalex_django.liveness.health import Check, Health, HealthVerdict, judge_health, read_health_files
from temporalex_django.liveness.recovery import report_deaths
from temporalex_django.management import outputs as printing
from temporalex_django.management.arguments import JsonOption, Option, ParsedValue, subcommand
from temporalex_django.operations.fleet.stats import QueueDemand, queue_demands
from temporalex_django.workers.admission import all_queues, unknown_queues
from temporalex_django.workers.app_modules import describe_classes
from temporalex_django.workers.background_thread import retry_until_available
from temporalex_django.workers.loop import WorkerLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSaid:
    """A line of the output of ``temporalex worker``.

    ``event`` is ``started``, ``log`` for a line of the log, or ``ended``. ``turns`` is how many times the worker had
    advanced a run when it ended. ``about`` names the subject of a line of the log, as far as it is known: ``run_id``,
    ``workflow``, ``workflow_id``, ``action``, ``worker``.
    """

    event: Literal["started", "log", "ended"]
    at: datetime
    text: str
    worker: str | None = None
    workflows: int | None = None
    queues: Sequence[str] | None = None
    database: str | None = None
    turns: int | None = None
    level: str | None = None
    logger: str | None = None
    about: Mapping[str, str] | None = None


_LARGEST_PORT = 65_535
_BACKENDS = (TABLES, TEMPORAL)


class JsonLogHandler(logging.Handler):
    """Logging handler that prints each record as a line of JSON, of the type ``WorkerSaid``."""

    def __init__(self, command: BaseCommand) -> None:
        super().__init__()
        self.command = command

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as a line of JSON. It contains no payloads, because log messages contain none."""
        try:
            log_event = WorkerSaid(
                event="log",
                at=datetime.fromtimestamp(record.created, UTC),
                text=record.getMessage(),
                level=record.levelname,
                logger=record.name,
                about={name: str(value) for name, value in facts_of(record).items()},
            )
            printing.print_json_line(self.command, log_event)
        except Exception:  # noqa: BLE001 - as every handler of the standard library does
            self.handleError(record)


def _port(text: str) -> int:
    """Return the number of a port. Raises ``ValueError``."""
    if not 0 <= (port := int(text)) <= _LARGEST_PORT:
        raise ValueError(text)
    return port


@subcommand("worker", output=WorkerSaid)
def run_worker(
    command: BaseCommand,
    *,
    queues: Annotated[
        str | None,
        Option("Names of queues, comma-separated (default: all queues that workflows and activities use)."),
    ],
    backend: Annotated[
        str | None,
        Option("Poll only the tables, or only the Temporal cluster of the project (default: both).", choices=_BACKENDS),
    ],
    burst: Annotated[
        bool, Option("Stop when nothing is due in the tables. With this option, the worker does not poll a cluster.")
    ],
    timeout: Annotated[float | None, Option("With --burst: fail if work remains after this many seconds.")],
    metrics_port: Annotated[
        int | None,
        Option("Serve the metrics of this process to Prometheus on this port (0: any free port).", type=_port),
    ],
    metrics_host: Annotated[
        str,
        Option("Address on which to serve the metrics (default: 127.0.0.1, which other machines cannot reach)."),
    ] = "127.0.0.1",
    json: JsonOption,
    verbosity: Annotated[int, ParsedValue()],
) -> None:
    """Advance workflows and run their activities in this process until it is stopped."""
    # The worker runs until SIGTERM or SIGINT, or with ``--burst`` until nothing is due. After the first of these
    # signals it finishes its turn, waits for its activities, releases its other claims, and ends. This takes at most
    # ``DRAIN_SECONDS`` plus ``LEAVE_SECONDS``. After a second signal it ends at once.
    #
    # On the command line, a child process does the work, and this process is its guardian. With ``--json`` the log goes
    # to the standard output as well, unless the project has configured logging.
    _log_to_console(command, verbosity, json=json)
    queue_names = _parse_queues(command, queues)
    _check_backend(backend, burst=burst)
    settings, on_heartbeat = get_settings(), _do_nothing
    hard_limit = settings.HARD_DEADLOCK_TIMEOUT
    if hard_limit is not None and getattr(command, "_called_from_command_line", False):
        # The process forks: parent and child must not share a connection, and no thread may exist yet (see decision
        # 21).
        connections.close_all()
        leaves_within = settings.DRAIN_SECONDS + settings.LEAVE_SECONDS
        storage = DjangoStorage()
        outcome = supervise(
            storage.domain, hard_limit, leaves_within=leaves_within, report_deaths=partial(report_deaths, storage)
        )
        # The parent gets the exit status of the child; the child gets a function, and goes on below.
        if isinstance(outcome, int):
            os._exit(outcome)
        on_heartbeat = outcome
        faulthandler.enable()
    stop = threading.Event()
    # Python allows signal handlers in the main thread alone; tests run the command in others.
    if threading.current_thread() is threading.main_thread():
        StopSignals(stop)
    metrics_address = None
    if metrics_port is not None:
        metrics_address = _serve_metrics(metrics_host, metrics_port)
    if not workflow.registry:
        command.stderr.write(
            "No workflow is registered: define one in workflows.py of an installed app, or import it there."
        )
    storage = DjangoStorage()
    try:
        if not retry_until_available(
            connections[storage.alias].ensure_connection, storage=storage, stop=stop, timeout=timeout
        ):
            return
    except TimeoutError as exc:
        raise CommandError(str(exc), returncode=printing.NOT_SET_UP) from exc
    # After the database is reachable, so that a worker may be started before it.
    if missing := unapplied_migrations(storage.alias):
        text = f"the workflow tables are not up to date: run manage.py migrate (not applied: {', '.join(missing)})"
        raise CommandError(text, returncode=printing.NOT_SET_UP)
    loop = WorkerLoop(
        queues=None if queues is None else queue_names,
        backends=_BACKENDS if backend is None else (backend,),
        kind="burst" if burst else "worker",
        on_heartbeat=on_heartbeat,
    )
    worker_id, text = str(loop.row.id), _describe(loop, queue_names, metrics_address, burst=burst)
    start_event = WorkerSaid(
        event="started",
        at=datetime.now(UTC),
        text=f"worker {worker_id}: {text}, database {loop.alias!r}",
        worker=worker_id,
        workflows=len(workflow.registry),
        queues=queue_names,
        database=loop.alias,
    )
    _print_event(command, start_event, json=json)
    tune_collector()
    try:
        turns = loop.run(stop, until_idle=burst, timeout=timeout)
    except TimeoutError as exc:
        raise CommandError(str(exc), returncode=printing.FINDINGS) from exc
    text = f"worker {worker_id}: stopped after {counted(turns, 'turn', 'turns')} of runs"
    _print_event(
        command,
        WorkerSaid(event="ended", at=datetime.now(UTC), text=text, worker=worker_id, turns=turns),
        json=json,
    )


def _describe(loop: WorkerLoop, queue_names: Sequence[str], metrics_address: str | None, *, burst: bool) -> str:
    text = f"{describe_classes()}, queues {', '.join(queue_names)}"
    if loop.cluster is not None and not burst:
        text += f", {'tables and ' if loop.polls_tables else ''}cluster at {cluster_address()}"
    if metrics_address is not None:
        text += f", metrics on {metrics_address}"
    return text


def _check_backend(backend: str | None, *, burst: bool) -> None:
    """Raise ``CommandError`` for a cluster that is not used, or would be polled until it is idle."""
    if backend != TEMPORAL:
        return
    if burst:
        raise printing.usage_error(
            "--burst and --backend temporal cannot be combined: a worker cannot see when a cluster has no more work",
            "Leave out --burst.",
        )
    if not uses_cluster():
        raise printing.usage_error(
            "--backend temporal: the settings name no Temporal cluster",
            "Set TEMPORALEX['CLUSTER'].",
        )


def _parse_queues(command: BaseCommand, queues: str | None) -> list[str]:
    """Return the queues to poll; None means all. Print a warning for one that nothing uses: it may be misspelt."""
    known_queues = all_queues()
    if queues is None:
        return known_queues
    queue_names = list(dict.fromkeys(name.strip() for name in queues.split(",") if name.strip()))
    if not queue_names:
        raise printing.usage_error(
            "--queues contains no queue", f"Leave it out to use all queues: {', '.join(known_queues)}."
        )
    for name, similar_name in unknown_queues(queue_names).items():
        suggestion = f"Did you mean {similar_name}?" if similar_name else f"The project uses {', '.join(known_queues)}."
        command.stderr.write(
            f"No workflow, activity or task of this project uses the queue {printing.escape(name)}, so it gets "
            f"work only from calls with options(queue=...). {suggestion}"
        )
    return queue_names


def _serve_metrics(host: str, port: int) -> str:
    """Serve the metrics of this process and return their address."""
    from temporalex_django.contrib import prometheus  # noqa: PLC0415 - prometheus_client is an extra

    try:
        port = prometheus.serve(host, port)
    except OSError as exc:
        raise printing.usage_error(
            f"metrics cannot be served on {host}, port {port}: {exc.strerror or exc}",
            "Choose another --metrics-port or --metrics-host; each worker on a machine needs its own port.",
        ) from exc
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _print_event(command: BaseCommand, worker_event: WorkerSaid, *, json: bool) -> None:
    if json:
        printing.print_json_line(command, worker_event)
    else:
        command.stdout.write(worker_event.text)
    command.stdout.flush()  # the next line may be a long time away


def _do_nothing() -> None:
    pass


def _log_to_console(command: BaseCommand, verbosity: int, *, json: bool) -> None:
    """Let this package's log go to the console, unless the project has configured logging."""
    logger = logging.getLogger("temporalex_django")
    if not logger.hasHandlers():
        handler = JsonLogHandler(command) if json else logging.StreamHandler()
        handler.setFormatter(PlainFormatter())
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if verbosity > 1 else logging.WARNING)


def tune_collector() -> None:
    """Have the garbage collector of this process look only at objects that are made from now on, and seldom."""
    gc.freeze()  # modules stay loaded, so collections need not look at them
    # The default would scan thousands of parked executors, which stay young for long, again and again.
    gc.set_threshold(50_000, 20, 100)


# --- health -----------------------------------------------------------------------------------------------------------


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


@subcommand("health", output=HealthSaid)
def check_health(
    command: BaseCommand,
    *,
    check: Annotated[
        Check,
        Option(
            "started: the worker has registered; live: its turns, maintenance and guardian make progress; "
            "ready: it also has a lease and accepts work (default)."
        ),
    ] = "ready",
    pid: Annotated[int | None, Option("Check only this worker: its pid, or that of its guardian.", "PID")],
    queues: Annotated[
        bool,
        Option(
            "Print how many workers each queue needs, from its lag, backlog, rates and durations. Reads the database."
        ),
    ],
    json: JsonOption,
) -> None:
    """Check the workers of this machine, for systemd, Kubernetes and people. Uses no database and no server.

    The exit status is 1 if a worker fails the check, or if there is no worker. This command reads a small file that
    each worker rewrites about once a second.

    With --queues, print how many workers each queue of the project needs, for autoscalers. This reads the database.
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
        raise CommandError(_problem_text(check, outputs), returncode=printing.FINDINGS)


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
        return printing.with_next_step(
            text,
            ("Start one: manage.py temporalex worker. Run this check on the machine of the worker, as the same user."),
        )
    failing = [worker_output for worker_output in outputs if not getattr(worker_output, check)]
    text = f"{len(failing)} of {counted(len(outputs), 'worker', 'workers')} {'is' if len(failing) == 1 else 'are'} not {check}"
    return printing.with_next_step(
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
