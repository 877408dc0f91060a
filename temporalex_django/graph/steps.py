"""``Step``, and the steps that come with the library.

A step is used in ``transitions`` as a class, or as an instance where it has parameters; instances compare by value.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.approvals import Escalation, human_task_spec
from temporalex_django.authoring.authorization import candidate_of_role
from temporalex_django.authoring.django_tasks import is_task
from temporalex_django.core import names
from temporalex_django.core.durations import to_seconds, wait_seconds
from temporalex_django.core.four_eyes import parse_scope
from temporalex_django.core.human_tasks import HumanTaskSpec
from temporalex_django.core.results import Event, Pending
from temporalex_django.errors import WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.authoring.retry import RetryPolicy
    from temporalex_django.graph.context import Context
    from temporalex_django.graph.instance import Instance

logger = logging.getLogger("temporalex_django.workflow")

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: What resumes, timers and the like are called; a key or an event of that form is nobody's.
_RESERVED_PREFIX = "__"


class Step:
    """One step of a graph. A subclass has ``events`` and ``execute``. An event is a name, or ``event(...)``.

    ``key`` names its entry in the context (default: the class name in snake case). ``retry``, ``timeout`` (one
    attempt), ``heartbeat`` (timedeltas or seconds) and ``queue`` are those of the activity that runs it; ``atomic``
    runs it in the transaction of the turn: its ORM writes, its result and what the graph does next commit together.
    With ``by_hand = False`` nobody completes or fails it by hand.
    """

    events: ClassVar[Sequence[str]] = ()
    key: str | None = None  # of the class, or of an instance
    retry: ClassVar[RetryPolicy | None] = None
    timeout: ClassVar[timedelta | float | None] = None
    heartbeat: ClassVar[timedelta | float | None] = None
    queue: ClassVar[str | None] = None
    atomic: ClassVar[bool] = False
    by_hand: ClassVar[bool] = True
    #: What people call it.
    label: ClassVar[str | None] = None

    #: Ends by itself with this event, the moment it becomes active; nothing is executed.
    instant: ClassVar[str | None] = None
    #: Only waits: for a resume, or for its timer.
    waits: ClassVar[bool] = False

    def timer(self) -> tuple[float, str] | None:
        """After how many seconds of waiting which event comes by itself."""
        return None

    def execute(self, instance: Instance, config: Any, context: Context) -> Any:
        """Do it. Plain or async; may use the ORM. Gives ``Event(name, data)``, ``Pending()`` or ``Err(reason)``.

        Runs at least once (``activity_context().idempotency_key`` is stable), exactly once when ``atomic``. What it
        raises is tried again by ``retry``, and so is ``Err``; a wrong result fails the run at once.
        """
        raise WorkflowDefinitionError(f"step {name_of(type(self))}: it has no execute(self, instance, config, context)")


StepRef = type[Step] | Step


class Done(Step):
    """The end of every path: becomes active and emits ``done``."""

    events = ("done",)
    instant = "done"

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        return Event("done")


class Debug(Step):
    """Logs the keys of the context and the events so far at DEBUG (data stays out of logs), and emits ``completed``."""

    events = ("completed",)

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        entries_text = ", ".join(f"{key_of(entry.step)} {entry.event}" for entry in instance.execution_history)
        logger.debug(
            "%s: context of %s; ended: %s", instance.id, ", ".join(context.steps) or "no step", entries_text or "-"
        )
        return Event("completed")


@dataclass(frozen=True)
class Wait(Step):
    """Emits ``timeout`` after ``duration`` (a timedelta or seconds). Two in one graph need different keys.

    With ``outside`` somebody may ``resume("timeout")`` before that.
    """

    events = ("timeout",)
    waits = True

    duration: timedelta | float
    key: str | None = None
    outside: bool = False

    def __post_init__(self) -> None:
        _check_wait_seconds("Wait", "duration", self.duration)
        _check_step_key("Wait", self.key)

    def timer(self) -> tuple[float, str]:
        return to_seconds(self.duration), "timeout"

    def execute(self, instance: Instance, config: Any, context: Context) -> Pending:
        return Pending()


@dataclass(frozen=True)
class WaitForEvent(Step):
    """Waits for ``resume(name)`` and emits ``name``.

    With a ``timeout`` (a timedelta or seconds) it emits ``timeout`` when that is over; with ``outside`` somebody may
    ``resume("timeout")`` before that. ``name`` may be an ``event(...)``, which says more of it.
    """

    waits = True

    name: str = "received"
    timeout: timedelta | float | None = None  # type: ignore[misc] # of the wait; nothing is executed that could have another
    key: str | None = None
    outside: bool = False

    def __post_init__(self) -> None:
        if not is_event(self.name):
            raise WorkflowDefinitionError(f"WaitForEvent: {self.name!r} is not a name of an event")
        if self.timeout is not None:
            if self.name == "timeout":
                raise WorkflowDefinitionError(
                    "WaitForEvent: an event named 'timeout' cannot be told from its own timeout"
                )
            _check_wait_seconds("WaitForEvent", "timeout", self.timeout)
        elif self.outside:
            raise WorkflowDefinitionError("WaitForEvent: outside=True is about its timeout, and it has none")
        _check_step_key("WaitForEvent", self.key)

    @property
    def events(self) -> tuple[str, ...]:  # type: ignore[override] # depends on the parameters
        return (self.name,) if self.timeout is None else (self.name, "timeout")

    def timer(self) -> tuple[float, str] | None:
        return None if self.timeout is None else (to_seconds(self.timeout), "timeout")

    def execute(self, instance: Instance, config: Any, context: Context) -> Pending:
        return Pending()


@dataclass(frozen=True)
class Approval(Step):
    """A person decides: ``approved`` or ``rejected``, in his inbox, or by ``resume("approved", by=user)``.

    It opens a human task, called ``title`` (else what people call the step). ``role`` is a Django permission
    (``app.codename``) or the name of a group; who decides must have it, or be one of the ``users`` (usernames) or in
    one of the ``groups``. ``due`` (a timedelta or seconds) emits ``overdue`` when nobody has decided by then;
    ``remind``, ``escalate`` and ``form`` are those of ``api.approval``. With ``four_eyes``
    (see ``api.approval``) a user decides who has neither started the run nor decided an earlier approval of it; code
    that names nobody may not. Who decided stands in the
    history and, with the data given, in the context: as ``by`` (and ``by_key``, the user's primary key as text) beside
    the keys of an object, and beside ``data`` where the data are no object.
    """

    waits = True

    role: str | None = None
    due: timedelta | float | None = None
    key: str | None = None
    four_eyes: bool | str = False
    title: str | None = None
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    remind: timedelta | float | None = None
    escalate: Escalation | None = None
    form: Any = None

    def __post_init__(self) -> None:
        names.check_label(self.title, owner="Approval: title")
        for name in ("users", "groups"):  # a list would do, and cannot be compared as steps are
            if isinstance(members := getattr(self, name), list):
                object.__setattr__(self, name, tuple(members))
        self.human_task_spec()
        if self.due is not None:
            _check_wait_seconds("Approval", "due", self.due)
        _check_step_key("Approval", self.key)

    @property
    def events(self) -> tuple[str, ...]:  # type: ignore[override] # depends on the parameters
        return ("approved", "rejected") if self.due is None else ("approved", "rejected", "overdue")

    def human_task_spec(self) -> HumanTaskSpec:
        """What is asked of whom."""
        return human_task_spec(
            self.title or _title_of(self),
            display_name=name_of(self),
            label="Approval",
            role=self.role,
            users=self.users,
            groups=self.groups,
            outcomes=("approved", "rejected"),
            four_eyes=self.four_eyes,
            form=self.form,
            remind=self.remind,
            escalate=self.escalate,
            due=self.due is not None,
        )

    def timer(self) -> tuple[float, str] | None:
        return None if self.due is None else (to_seconds(self.due), "overdue")

    def execute(self, instance: Instance, config: Any, context: Context) -> Pending:
        return Pending()


def timer_of(step: StepRef) -> tuple[float, str] | None:
    """After how many seconds of waiting which event of the step comes by itself."""
    return step.timer() if isinstance(step, Step) else None


def external_events(step: StepRef) -> list[str]:
    """The events that a step takes from others while it waits: not that of its timer, unless it says so."""
    timer = timer_of(step)
    return [event for event in events_of(step) if timer is None or event != timer[1] or getattr(step, "outside", False)]


def human_task_spec_of(step: StepRef) -> HumanTaskSpec | None:
    """What a step asks people; None for one that asks nobody: an ``Approval`` does, and what waits with a role."""
    if isinstance(step, Approval):
        return step.human_task_spec()
    role = role_of(step)
    if role is None or not step.waits:
        return None
    timer_event = timer_of(step)
    return HumanTaskSpec(
        title=_title_of(step),
        label=name_of(step),
        candidates=(candidate_of_role(role),),
        outcomes=tuple(event for event in events_of(step) if timer_event is None or event != timer_event[1]),
        four_eyes=parse_scope(getattr(step, "four_eyes", False)) or "",
    )


def _title_of(step: StepRef) -> str:
    """A step in words."""
    return (step.label or key_of(step).replace("_", " ").capitalize())[: names.MAX_LENGTH]


def decider_words(step: StepRef) -> tuple[str, ...]:
    """Whom a step asks, as words (see ``people.answers_to``); none: nobody in particular."""
    spec = human_task_spec_of(step)
    return () if spec is None else spec.candidates


def role_of(step: StepRef) -> str | None:
    """What somebody must have who decides the step."""
    return getattr(step, "role", None)


def events_of(step: StepRef) -> tuple[str, ...]:
    """The events that a step declares, as plain strings: those of an Enum compare with them, and hash otherwise."""
    return tuple(str.__str__(event) for event in step.events)


def is_step(value: object) -> bool:
    """Whether it can stand in a graph: a subclass of ``Step``, or an instance of one."""
    return isinstance(value, Step) or (isinstance(value, type) and issubclass(value, Step) and value is not Step)


def not_a_step_text(value: object, expectation: str = "") -> str:
    """The sentence for what stands where a step should; of activities and Django tasks with the way to use them."""
    value_name, usage = None, ""
    if isinstance(value, Activity):
        value_name, usage = f"the activity {value.name}", "calls its function"
    elif is_task(value):
        value_name, usage = f"the Django task {value.module_path}", "calls task.call(...)"  # type: ignore[attr-defined] # by is_task
    if value_name is None:
        return f"{value!r} is not a step{expectation}"
    return f"{value_name} is not a step: write a Step whose execute {usage} and gives an Event; it is run as an activity itself"


def class_of(step: StepRef) -> type[Step]:
    """The class of a step."""
    return step if isinstance(step, type) else type(step)


def name_of(step: object) -> str:
    """How errors and pictures call a step: its class, with the key of an instance that has one."""
    if not is_step(step):
        return repr(step)
    cls = class_of(step)  # type: ignore[arg-type] # checked above
    own = None if isinstance(step, type) else getattr(step, "key", None)
    return f"{cls.__name__}({own})" if own else cls.__name__


def key_of(step: StepRef) -> str:
    """The context key: ``ValidateOrder`` → ``validate_order``, ``HTTPCall2`` → ``http_call2``."""
    return step.key if step.key is not None else _snake_case(class_of(step).__name__)


@lru_cache(maxsize=10_000)
def _snake_case(name: str) -> str:
    return _WORD_BOUNDARY.sub("_", name).lower()


def is_event(value: object) -> bool:
    """Whether it can be the name of an event."""
    return isinstance(value, str) and names.is_name(value) and not value.startswith(_RESERVED_PREFIX)


def is_key(value: object) -> bool:
    """Whether it can be the key of a step."""
    return isinstance(value, str) and names.is_name(value) and not value.startswith("_")


def _check_step_key(owner: str, key: object) -> None:
    if key is not None and not is_key(key):
        raise WorkflowDefinitionError(f"{owner}: {key!r} cannot be a key (a name that does not begin with '_')")


def _check_wait_seconds(owner: str, name: str, value: Any) -> None:
    try:
        wait_seconds(value, label=f"{owner}: {name}")
    except (TypeError, ValueError) as exc:
        raise WorkflowDefinitionError(str(exc)) from None
