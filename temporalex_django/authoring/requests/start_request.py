"""``StartRequest``: everything that a caller says about a run to start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from temporalex_django.authoring.requests.start_policy import (
    OnClosed,
    OnConflict,
    Throttle,
    check_debounce,
    check_start_policy,
    parse_throttle,
)
from temporalex_django.authoring.requests.start_times import StartTimes, check_start_times
from temporalex_django.authoring.unique import check_id
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.core.names import wait_seconds
from temporalex_django.errors import InvalidId, InvalidStart

if TYPE_CHECKING:
    from temporalex_django.authoring.authorization import Person
    from temporalex_django.authoring.workflow import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A run to start, as the caller described it.

    ``workflow`` is the class of the version that runs, and ``args`` its input. The business id is ``id``, or is made
    from ``value`` by the ``unique`` of the class. ``subject`` is the model instance that the run is about.
    ``telemetry`` (JSON) goes into the Django signals about the steps of a graph. ``search_attributes`` are values of
    declared attributes, and ``tags`` are added to those of the class. ``by`` is the user in whose name it starts.

    The run begins at ``start_at``, or ``start_delay`` (a timedelta or seconds) after the start. It is timed out if it
    has not begun by ``start_before``.

    ``on_conflict`` says what happens if an open run has the id, and ``on_closed`` if the start is possible when a run
    with the id has ended. With ``debounce`` (a timedelta or seconds), the run begins after that time, and a start
    replaces the input of one that has not begun. ``throttle`` is ``(count, period)`` or ``(count, period, key)``.
    Raises ``InvalidStart`` for options that cannot be, or that contradict each other, and ``WorkflowDefinitionError``
    for a class that another one has replaced under its name.

    ``scheduled_for`` is the time of the slot for which a schedule starts it. ``headers`` travel with the run; the
    constructor raises ``InvalidHeaders``.
    """

    workflow: type[Workflow]
    args: Any = None
    id: str | None = None
    value: str | None = None
    subject: Any = None
    telemetry: Mapping[str, Any] | None = None
    search_attributes: Mapping[str, Any] | None = None
    tags: Sequence[str] | None = None
    by: Person | None = None
    start_at: datetime | None = None
    start_delay: timedelta | float | None = None
    start_before: datetime | None = None
    on_conflict: OnConflict = "fail"
    on_closed: OnClosed = "allow"
    debounce: timedelta | float | None = None
    throttle: tuple[Any, ...] | None = None
    scheduled_for: datetime | None = None
    headers: Headers | None = None

    def __post_init__(self) -> None:
        self.workflow.require_registered()
        if self.headers is not None:
            headers = check_headers(self.headers, label=f"start of {self.workflow.name}")
            object.__setattr__(self, "headers", headers)
        # Nearly all starts have neither policy, and starts are many.
        if self.has_policy:
            check_start_policy(self.on_conflict, self.on_closed, label=f"start of {self.workflow.name}")
            self._check_pace()

    def _check_pace(self) -> None:
        """Raise ``InvalidStart`` if ``debounce`` or ``throttle`` is not valid, or contradicts another option."""
        label = f"start of {self.workflow.name}"
        paces = [name for name in ("debounce", "throttle") if getattr(self, name) is not None]
        times = [name for name in ("start_at", "start_delay") if getattr(self, name) is not None]
        if paces and len(paces + times) > 1:
            raise InvalidStart(f"{label}: pass only one of {', '.join(paces + times)}: each says when the run begins")
        if self.debounce is not None and (
            self.needs_id or (self.workflow.unique is not None and self.workflow.unique.scope == "none")
        ):
            raise InvalidStart(f"{label}: debounce needs an id that only one open run can have: pass id= or value=")
        if self.debounce is not None:
            check_debounce(self.debounce, label=label)
        if self.throttle is not None:
            parse_throttle(self.throttle, label=label)

    @property
    def parsed_throttle(self) -> Throttle | None:
        """The option ``throttle`` as a ``Throttle``, or None without one. Raises ``InvalidStart``."""
        if self.throttle is None:
            return None
        return parse_throttle(self.throttle, label=f"start of {self.workflow.name}")

    @property
    def has_policy(self) -> bool:
        """True if the start sets ``on_conflict``, ``on_closed``, ``debounce`` or ``throttle``.

        Such a start has to look at other runs; any other start is a plain insert.
        """
        return (
            self.on_conflict != "fail"
            or self.on_closed != "allow"
            or self.debounce is not None
            or self.throttle is not None
        )

    @property
    def times(self) -> StartTimes:
        """The checked times of the start: ``start_at``, ``start_before`` and the delay. Raises ``InvalidStart``."""
        delay = self.start_delay if self.debounce is None else self.debounce
        return check_start_times(self.start_at, delay, self.start_before, label=f"start of {self.workflow.name}")

    @property
    def start_limit(self) -> dict[str, Any] | None:
        """The value ``{"debounce": seconds}`` that the row of a debounced run stores until it begins, or None.

        Only the input of a run with this value may be replaced by a further debounced start.
        """
        if self.debounce is None:
            return None
        return {"debounce": wait_seconds(self.debounce, label="debounce")}

    @property
    def needs_id(self) -> bool:
        """True if neither an id nor a value was passed, so that an id has to be generated."""
        return self.id is None and self.value is None

    def business_id(self, *, suffix: Callable[[], str]) -> str:
        """Return the business id of the run, from the id or the value of the request.

        ``suffix`` returns 8 hex digits, which tell runs of one value apart where the scope of ``unique`` is ``none``.
        Raises ``InvalidId``.
        """
        name, unique = self.workflow.name, self.workflow.unique
        if self.id is not None:
            if self.value is not None:
                raise InvalidId(f"{name}: give id= or value=, not both")
            return check_id(self.id) if unique is None else unique.check(self.id)
        if unique is None:
            raise InvalidId(f"{name} does not declare `unique`: start it with an id, not a value")
        return unique.run_id_for(self.value, suffix)
