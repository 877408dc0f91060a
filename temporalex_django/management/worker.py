"""Advance workflows and run their activities in this process, until it is told to stop."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from temporalex_django.authoring import workflow
from temporalex_django.checks import unapplied
from temporalex_django.conf import get_settings
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.guardian import StopSignals, attended
from temporalex_django.workers.loop import WorkerLoop, all_queues
from temporalex_django.workers.patience import once_there


def add_arguments(parser: CommandParser) -> None:
    """Say which arguments the subcommand takes."""
    parser.add_argument(
        "--queues", help="names of queues, comma-separated (default: all that workflows and activities name)"
    )
    parser.add_argument("--burst", action="store_true", help="end when nothing is due any more")
    parser.add_argument(
        "--timeout", type=float, help="with --burst: fail when there is still work after so many seconds"
    )


def handle(
    command: BaseCommand, *, queues: str | None, burst: bool, timeout: float | None, verbosity: int = 1, **_: Any
) -> None:
    """SIGTERM and SIGINT: finish the turn in hand, wait for activities, give back the rest, and go.

    A second one: go now.

    From the command line the work is done by a child of this process, which ends it when nothing else can.
    """
    _log_to_console(verbosity)
    hard_limit, on_beat = get_settings().HARD_DEADLOCK_TIMEOUT, _nothing
    if hard_limit is not None and getattr(command, "_called_from_command_line", False):
        connections.close_all()
        outcome = attended(DjangoStorage().domain, hard_limit)
        if isinstance(outcome, int):
            os._exit(outcome)
        on_beat = outcome
        faulthandler.enable()
    chosen = [name.strip() for name in queues.split(",") if name.strip()] if queues else all_queues()
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        StopSignals(stop)
    if not workflow.registry:
        command.stderr.write("No workflow is registered: is there a workflows.py in an installed app?")
    storage = DjangoStorage()
    try:
        if not once_there(connections[storage.alias].ensure_connection, storage=storage, stop=stop, timeout=timeout):
            return
    except TimeoutError as exc:
        raise CommandError(str(exc)) from exc
    if missing := unapplied(storage.alias):
        raise CommandError(
            f"the tables of workflows are not up to date: run manage.py migrate ({', '.join(missing)} is not applied)"
        )
    loop = WorkerLoop(queues=chosen, kind="burst" if burst else "worker", on_beat=on_beat)
    command.stdout.write(
        f"worker {loop.row.id}: {len(workflow.registry)} workflows, queues {', '.join(chosen)}, database {loop.alias!r}"
    )
    gc.freeze()  # what is loaded now stays: collections need not look at it again
    gc.set_threshold(
        50_000, 20, 100
    )  # thousands of parked executors are young for long: the default looks at them all the time
    try:
        turns = loop.run(stop, until_idle=burst, timeout=timeout)
    except TimeoutError as exc:
        raise CommandError(str(exc)) from exc
    command.stdout.write(f"worker {loop.row.id}: done, {turns} turns of runs")


def _nothing() -> None:
    pass


def _log_to_console(verbosity: int) -> None:
    """A worker without configured logging says at least what goes wrong."""
    logger = logging.getLogger("temporalex_django")
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if verbosity > 1 else logging.WARNING)
