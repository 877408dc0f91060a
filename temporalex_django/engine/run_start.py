"""The start of a run, by a caller or by another run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from temporalex_django.authoring.authorization import Person, sender_of
from temporalex_django.authoring.requests import StartRequest, Throttle
from temporalex_django.authoring.workflow import input_or_default, start_options
from temporalex_django.core.human_tasks import add_schedulers
from temporalex_django.core.messages.sender import Headers
from temporalex_django.core.names import original_name
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.round_trip import check_reader
from temporalex_django.errors import AlreadyRunning


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The values of a run to start, as a storage stores them.

    Those that the class declares come from ``authoring.workflow.start_options``. ``scope`` names the open runs among
    which the id is unique: global, workflow, version or none. ``execution_timeout`` (seconds) limits the whole chain,
    ``run_timeout`` each run of it. ``search_attributes`` have the form of ``core.payloads.search_attributes``.
    ``snapshot`` is data that the run starts with in addition to its input ``args``, such as that of declared steps.

    The run begins at ``start_at``, or ``start_delay`` seconds after it was started. Without either, and with a time
    that has passed, it begins at once. If it has not begun by ``start_before``, it is timed out. ``start_limit`` is the
    throttle or the debounce that delays it, if any. ``scheduled_for`` is the time of the slot for which a schedule
    starts it. ``headers`` is None if it has none.

    ``generated`` is True if the id was drawn at random for this start. No other run can have it, so nothing is checked.
    ``subject`` is the model instance that the run is about, if any.
    """

    workflow_id: str
    workflow: str
    args: Any
    version: int = 1
    queue: str = "default"
    scope: str = "global"
    seed: int | None = None
    execution_timeout: float | None = None
    run_timeout: float | None = None
    parent: str | None = None
    parent_chain: UUID | None = None
    parent_run: UUID | None = None
    parent_seq: int | None = None
    parent_close: str | None = None
    scheduled_for: datetime | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, Any] | None = None
    search_attributes: Mapping[str, Any] | None = None
    snapshot: Mapping[str, Any] | None = None
    start_at: datetime | None = None
    start_delay: float | None = None
    start_before: datetime | None = None
    start_limit: Mapping[str, Any] | None = None
    headers: Headers | None = None
    generated: bool = False
    subject: Any = None

    @property
    def open_key(self) -> str | None:
        """The text that is unique among open runs, made of the business id and the scope; None with scope none.

        A database constraint on it prevents a second open run. It contains the original name of a renamed class, so
        that it also covers the runs that old code starts.
        """
        match self.scope:
            case "global":
                return f"g:{self.workflow_id}"
            case "workflow":
                return f"w:{original_name(self.workflow)}:{self.workflow_id}"
            case "version":
                return f"v:{original_name(self.workflow)}:{self.version}:{self.workflow_id}"
            case _:
                return None

    @property
    def first_timeout(self) -> float | None:
        """The seconds until the first run times out, or None."""
        if self.execution_timeout is None or self.run_timeout is None:
            return self.execution_timeout or self.run_timeout
        return min(self.execution_timeout, self.run_timeout)

    @property
    def is_delayed(self) -> bool:
        """True if the caller named a time at which the run begins."""
        return self.start_at is not None or self.start_delay is not None

    def begins_at(self, now: datetime) -> datetime:
        """Return when the run begins if it is started at ``now``. Timeouts count from then."""
        if self.start_at is not None:
            return max(now, self.start_at)
        return now + timedelta(seconds=self.start_delay or 0)

    def due_at(self, now: datetime) -> datetime:
        """Return when a worker first has to process the run if it is started at ``now``.

        That is when the run begins, or when it times out before.
        """
        begin, deadline = self.begins_at(now), self.deadline(now)
        return begin if deadline is None else min(begin, deadline)

    def starts_at(self, now: datetime) -> datetime | None:
        """Return when the run begins if it is started at ``now``, or None if the caller named no time."""
        if self.is_delayed:
            return self.begins_at(now)
        return None

    def expires_at(self, now: datetime) -> datetime | None:
        """Return when the whole chain times out if it is started at ``now``, or None if it has no timeout."""
        if self.execution_timeout is None:
            return None
        return self.begins_at(now) + timedelta(seconds=self.execution_timeout)

    def deadline(self, now: datetime) -> datetime | None:
        """Return when the first run of the chain times out if it is started at ``now``, or None if it never does.

        Before the run begins, ``start_before`` counts, too.
        """
        if (timeout := self.first_timeout) is None:
            return self.start_before
        deadline = self.begins_at(now) + timedelta(seconds=timeout)
        return deadline if self.start_before is None else min(deadline, self.start_before)


def open_already_error(start: RunStart) -> AlreadyRunning:
    """Return the ``AlreadyRunning`` for a start whose business id an open run has."""
    return AlreadyRunning(f"{start.workflow} {start.workflow_id!r} is open already: use its handle, or another id")


def start_of_request(
    request: StartRequest,
    *,
    workflow_id: str,
    seed: int | None,
    by: Person | None,
    make_snapshot: Callable[..., dict[str, Any] | None],
    schedulers: Iterable[str] = (),
    generated: bool = False,
    headers: Headers | None = None,
    checks_input: bool = False,
    limit: int = codec.MAX_BYTES,
) -> RunStart:
    """Return the values of a new run with this business id and this random seed, from the request of its caller.

    ``by`` is the user in whose name it starts. ``make_snapshot`` returns the data that it starts with besides its
    input. ``schedulers`` are the keys of users who had a part in its schedule, who may not decide under four eyes. With
    ``checks_input``, an input that does not fit the class is an error of the caller; otherwise it fails the run.
    ``limit`` is the largest size of a payload in bytes. Raises ``InvalidStart`` and ``PayloadError``.
    """
    cls = request.workflow
    label = f"the input of {cls.name}"
    args = codec.to_plain(input_or_default(cls, request.args), label=label, limit=limit)
    if checks_input:
        codec.convert(args, cls.definition.args_type, label=label)
    if not codec.is_exact(request.args, args):
        check_reader(
            request.args,
            args,
            lambda: cls.definition.args_type,
            label=label,
            reader=f"run of {cls.name}",
            emit_warning=checks_input,
        )
    snapshot, telemetry = None, request.telemetry
    if telemetry is not None or by is not None:
        telemetry = None if telemetry is None else codec.to_plain(telemetry, label="telemetry", limit=limit)
        snapshot = make_snapshot(cls, telemetry=telemetry, started_by=sender_of(by))
    return RunStart(
        workflow_id=workflow_id,
        args=args,
        seed=seed,
        generated=generated,
        subject=request.subject,
        scheduled_for=request.scheduled_for,
        snapshot=add_schedulers(snapshot, schedulers) if schedulers else snapshot,
        start_limit=request.start_limit,
        headers=headers,
        **request.times.as_options(),
        **start_options(cls, search_attributes=request.search_attributes, tags=request.tags),
    )


def throttled_start(
    start: RunStart, throttle: Throttle, times: Sequence[float], now: datetime
) -> tuple[RunStart, list[float]]:
    """Return the start with the time at which its run may begin, and the times to store, in seconds since 1970.

    ``times`` are those at which the last runs under the throttle begin.
    """
    begin, times_with_this = throttle.next_begin(times, now.timestamp())
    if begin <= now.timestamp():
        return start, times_with_this
    start_at = datetime.fromtimestamp(begin, UTC)
    return replace(start, start_at=start_at, start_limit=throttle.as_limit()), times_with_this
