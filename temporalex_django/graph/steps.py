"""``Step``, and the steps that come with the library: ``Done``, ``Debug``, ``Wait``, ``WaitForEvent`` and ``Approval``.

A step is used in ``transitions`` as a class, or as an instance where it has parameters. Instances compare by value.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.authorization import candidate_of_role
from temporalex_django.authoring.django_tasks import is_task
from temporalex_django.authoring.foreign_options import APPROVAL, WAIT_FOR_EVENT, answers_foreign_arguments
from temporalex_django.authoring.human_tasks import Escalation, human_task_spec
from temporalex_django.core import names
from temporalex_django.core.human_tasks import HumanTaskSpec, parse_scope
from temporalex_django.core.names import to_seconds, wait_seconds
from temporalex_django.core.results import Event, Pending
from temporalex_django.errors import WorkflowDefinitionError

if TYPE_CHECKING:
    from temporalex_django.authoring.activity_options import RetryPolicy
    from temporalex_django.graph.context import Context
    from temporalex_django.graph.instance import Instance

logger = logging.getLogger("temporalex_django.workflow")

#: The end of a wait: a duration, as a timedelta or in seconds, or an instant.
Deadline = timedelta | float | datetime

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: The library's own names (of resumes, timers and others) have this prefix; events of users may not.
_RESERVED_PREFIX = "__"


class Step:
    """One step of a graph. A subclass has ``events`` and ``execute``.

    - ``events`` are the outcomes of the step that select what follows. An event is a name, or ``event(...)``.
    - ``key`` names its entry in the context. The default is the class name in snake case.
    - ``retry``, ``timeout`` (of one attempt), ``heartbeat`` (timedeltas or seconds) and ``queue`` are the options of
      the activity that runs the step.
    - ``atomic`` runs it in the transaction of the turn: its ORM writes, its result and the next step of the graph
      commit together.
    - ``by_hand = False`` forbids operators to complete or fail it by hand.
    """

    events: ClassVar[Sequence[str]] = ()
    key: str | None = None  # of the class, or of an instance
    retry: ClassVar[RetryPolicy | None] = None
    timeout: ClassVar[timedelta | float | None] = None
    heartbeat: ClassVar[timedelta | float | None] = None
    queue: ClassVar[str | None] = None
    atomic: ClassVar[bool] = False
    by_hand: ClassVar[bool] = True
    #: The name of the step for people.
    label: ClassVar[str | None] = None

    #: The step ends by itself with this event as soon as it becomes active; nothing is executed.
    instant: ClassVar[str | None] = None
    #: The step only waits, for a resume or for its timer.
    waits: ClassVar[bool] = False

    def timer(self) -> tuple[Deadline, str] | None:
        """Return ``(deadline, event)``: then the waiting step emits the event by itself.

        The deadline is a timedelta or a number of seconds, or a datetime with a time zone. Returns None for a step
        without a timer.
        """
        return None

    def execute(self, instance: Instance, config: Any, context: Context) -> Any:
        """Do the work of the step and return ``Event(name, data)``, ``Pending()`` or ``Err(reason)``.

        ``instance`` is the state of the graph. ``config`` is the one that the transition gives to the step, or None.
        ``context`` has the data that the run started with and the results of earlier steps.

        It may be plain or async, and may use the ORM. It runs at least once, with the same
        ``activity_context().idempotency_key`` in each attempt, or exactly once if the step is ``atomic``. An exception
        is retried as ``retry`` says, and so is ``Err``. A wrong result fails the run at once.
        """
        raise WorkflowDefinitionError(f"step {name_of(type(self))}: it has no execute(self, instance, config, context)")


StepRef = type[Step] | Step


class Done(Step):
    """The end of every path. As soon as it becomes active, it emits ``done``; nothing is executed."""

    events = ("done",)
    instant = "done"

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        return Event("done")


class Debug(Step):
    """A step that logs the keys of the context and the events so far, and emits ``completed``.

    It logs at DEBUG. Data stay out of the log.
    """

    events = ("completed",)

    def execute(self, instance: Instance, config: Any, context: Context) -> Event:
        entries_text = ", ".join(f"{key_of(entry.step)} {entry.event}" for entry in instance.execution_history)
        logger.debug(
            "%s: context of %s; ended: %s", instance.id, ", ".join(context.steps) or "no step", entries_text or "-"
        )
        return Event("completed")


@dataclass(frozen=True)
class Wait(Step):
    """A step that waits for ``duration`` (a timedelta or seconds) and then emits ``timeout``.

    Two of them in one graph need different keys. With ``outside=True``, ``resume("timeout")`` may end the wait earlier.
    """

    events = ("timeout",)
    waits = True

    duration: timedelta | float
    key: str | None = None
    outside: bool = False

    def __post_init__(self) -> None:
        _check_wait_seconds("Wait", "duration", self.duration)
        _check_step_key("Wait", self.key)

    def timer(self) -> tuple[Deadline, str]:
        return to_seconds(self.duration), "timeout"

    def execute(self, instance: Instance, config: Any, context: Context) -> Pending:
        return Pending()


@answers_foreign_arguments("WaitForEvent", WAIT_FOR_EVENT)
@dataclass(frozen=True)
class WaitForEvent(Step):
    """A step that waits until somebody sends the event ``name`` by ``resume(name)``, and then emits it.

    With a ``timeout`` (a timedelta or seconds), or with ``until`` (a datetime with a time zone) instead, it emits
    ``timeout`` after that time; at once if it has passed. With ``outside=True``,
    ``resume("timeout")`` may end the wait earlier. ``name`` may be an ``event(...)`` with a type, a permission or a
    validator.
    """

    waits = True

    name: str = "received"
    timeout: timedelta | float | None = None  # type: ignore[misc] # of the wait; no attempt runs that could have one
    key: str | None = None
    outside: bool = False
    until: datetime | None = None

    def __post_init__(self) -> None:
        if not is_event(self.name):
            raise WorkflowDefinitionError(f"WaitForEvent: {names.quoted(self.name)} is not a valid event name")
        if self.timeout is not None or self.until is not None:
            if self.name == "timeout":
                raise WorkflowDefinitionError(
                    "WaitForEvent: an event named 'timeout' cannot be distinguished from its own timeout"
                )
            if self.timeout is not None and self.until is not None:
                raise WorkflowDefinitionError("WaitForEvent: give either timeout or until, not both")
            _check_deadline("WaitForEvent: timeout", self.timeout)
            _check_deadline("WaitForEvent: until", self.until, is_instant=True)
        elif self.outside:
            raise WorkflowDefinitionError("WaitForEvent: outside=True applies to its timeout, but it has none")
        _check_step_key("WaitForEvent", self.key)

    @property
    def events(self) -> tuple[str, ...]:  # type: ignore[override] # depends on the parameters
        if self.timeout is None and self.until is None:
            return (self.name,)
        return (self.name, "timeout")

    def timer(self) -> tuple[Deadline, str] | None:
        if self.until is not None:
            return self.until, "timeout"
        if self.timeout is None:
            return None
        return names.timeout_seconds(self.timeout, label="WaitForEvent: timeout"), "timeout"

    def execute(self, instance: Instance, config: Any, context: Context) -> Pending:
        return Pending()


@answers_foreign_arguments("Approval", APPROVAL)
@dataclass(frozen=True)
class Approval(Step):
    """A step that a person decides: ``approved`` or ``rejected``, in their inbox or by ``resume("approved", by=user)``.

    It opens a human task with the name ``title``; the default is the name of the step for people.

    - ``role`` is a Django permission (``app.codename``) or the name of a group. The person who decides must have it, or
      be one of the ``users`` (usernames), or be in one of the ``groups``.
    - ``due`` (a timedelta or seconds, or a datetime with a time zone) emits ``overdue`` when nobody has decided by
      then; at once if that time has passed, also by a negative duration.
    - ``remind`` (a timedelta or seconds) is the time between two reminders, each of which is a Django signal.
    - ``escalate`` (an ``Escalation``) lets more people decide after a while.
    - ``form`` describes the data of the decision: a dataclass, TypedDict or msgspec type, or the path of a Django form.
    - ``four_eyes`` (see ``api.approval``) requires a user who has neither started the run nor decided an earlier
      approval of it. Code that names no user may not decide.

    The history records who decided. So does the context, with the data of the decision: as ``by``, and as ``by_key``,
    the primary key of the user as text. If the data are an object, both are added to its keys. Other data are under
    ``data``.
    """

    waits = True

    role: str | None = None
    due: Deadline | None = None
    key: str | None = None
    four_eyes: bool | str = False
    title: str | None = None
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    remind: timedelta | float | None = None
    escalate: Escalation | None = None
    form: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", names.fit_optional_label(self.title, owner="Approval: title"))
        # A list is accepted and stored as a tuple: steps are hashed and compared by value.
        for name in ("users", "groups"):
            if isinstance(members := getattr(self, name), list):
                object.__setattr__(self, name, tuple(members))
        self.human_task_spec()
        _check_deadline("Approval: due", self.due, is_instant=isinstance(self.due, datetime))
        _check_step_key("Approval", self.key)

    @property
    def events(self) -> tuple[str, ...]:  # type: ignore[override] # depends on the parameters
        if self.due is None:
            return ("approved", "rejected")
        return ("approved", "rejected", "overdue")

    def human_task_spec(self) -> HumanTaskSpec:
        """Return the description of the human task: its title, its candidates and its outcomes."""
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

    def timer(self) -> tuple[Deadline, str] | None:
        if self.due is None:
            return None
        if isinstance(self.due, datetime):
            return self.due, "overdue"
        return names.timeout_seconds(self.due, label="Approval: due"), "overdue"

    def execute(self, instance: Instance, config: Any, context: Context) -> Pending:
        return Pending()


def timer_of(step: StepRef, now: datetime | None) -> tuple[float, str] | None:
    """Return the timer of a step as ``(seconds, event)``: that long after ``now`` it emits the event by itself.

    Where no clock is (``now`` None), an instant is infinitely far away. Returns None for a step without a timer.
    """
    timer = step.timer() if isinstance(step, Step) else None
    if timer is None:
        return None
    deadline, event = timer
    if isinstance(deadline, datetime):
        return math.inf if now is None else names.seconds_until(deadline, now), event
    return to_seconds(deadline), event


def timer_event_of(step: StepRef) -> str | None:
    """Return the event that a step emits by itself when its timer ends, or None for a step without a timer."""
    timer = step.timer() if isinstance(step, Step) else None
    return None if timer is None else timer[1]


def external_events(step: StepRef) -> list[str]:
    """Return the events of a waiting step that people or code may send to it (by ``resume``).

    The event of its timer is among them only if the step allows it (``outside``).
    """
    timer_event = timer_event_of(step)
    return [event for event in events_of(step) if event != timer_event or getattr(step, "outside", False)]


def human_task_spec_of(step: StepRef) -> HumanTaskSpec | None:
    """Return the human task that a step opens while it waits, or None.

    An ``Approval`` opens one, and so does any other waiting step with a ``role``.
    """
    if isinstance(step, Approval):
        return step.human_task_spec()
    role = role_of(step)
    if role is None or not step.waits:
        return None
    timer_event = timer_event_of(step)
    return HumanTaskSpec(
        title=_title_of(step),
        label=name_of(step),
        candidates=(candidate_of_role(role),),
        outcomes=tuple(event for event in events_of(step) if event != timer_event),
        four_eyes=parse_scope(getattr(step, "four_eyes", False)) or "",
    )


def _title_of(step: StepRef) -> str:
    """Return the ``label``, or the key with spaces and a capital letter."""
    return (step.label or key_of(step).replace("_", " ").capitalize())[: names.MAX_LENGTH]


def decider_words(step: StepRef) -> tuple[str, ...]:
    """Return the candidates who may decide a step, such as ``("group:managers",)``; empty if the step asks nobody.

    A candidate is ``user:<username>``, ``group:<name>`` or ``perm:<app.codename>``.
    """
    spec = human_task_spec_of(step)
    if spec is None:
        return ()
    return spec.candidates


def role_of(step: StepRef) -> str | None:
    """Return the permission or the group that a person needs to decide the step; None if it asks for none."""
    return getattr(step, "role", None)


def events_of(step: StepRef) -> tuple[str, ...]:
    """Return the events that a step declares, as plain strings.

    A member of an Enum would compare equal to a plain string, but hash differently.
    """
    return tuple(str.__str__(event) for event in step.events)


def is_step(value: object) -> bool:
    """Return True if the value can be a step of a graph: a subclass of ``Step``, or an instance of one."""
    return isinstance(value, Step) or (isinstance(value, type) and issubclass(value, Step) and value is not Step)


def not_a_step_text(value: object, expectation: str = "") -> str:
    """Return the error text for a value that is not a step. For activities and Django tasks it says how to use them.

    ``expectation`` is added for other values: the forms that are valid.
    """
    value_name, usage = None, ""
    if isinstance(value, Activity):
        value_name, usage = f"the activity {value.name}", "calls its function"
    elif is_task(value):
        value_name, usage = f"the Django task {value.module_path}", "calls task.call(...)"  # type: ignore[attr-defined] # by is_task
    if value_name is None:
        return f"{value!r} is not a step{expectation}"
    return (
        f"{value_name} is not a step: write a Step whose execute {usage} and returns an Event; "
        "the step itself runs as an activity"
    )


def class_of(step: StepRef) -> type[Step]:
    """Return the step class of ``step``, which is that class itself or an instance of it."""
    if isinstance(step, type):
        return step
    return type(step)


def name_of(step: object) -> str:
    """Return the name of a step for errors and pictures: its class, and for an instance its key if it has one."""
    if not is_step(step):
        return repr(step)
    cls = class_of(step)  # type: ignore[arg-type] # checked above
    own = None
    if not isinstance(step, type):
        own = getattr(step, "key", None)
    if own:
        return f"{cls.__name__}({own})"
    return cls.__name__


def key_of(step: StepRef) -> str:
    """Return the key of a step in the context: ``validate_order`` for ``ValidateOrder``, unless it sets ``key``."""
    if step.key is not None:
        return step.key
    return _snake_case(class_of(step).__name__)


@lru_cache(maxsize=10_000)
def _snake_case(name: str) -> str:
    return _WORD_BOUNDARY.sub("_", name).lower()


def is_event(value: object) -> bool:
    """Return True if the value can be the name of an event: a valid name that does not begin with ``__``."""
    return isinstance(value, str) and names.is_name(value) and not value.startswith(_RESERVED_PREFIX)


def is_key(value: object) -> bool:
    """Return True if the value can be the key of a step: a valid name that does not begin with ``_``."""
    return isinstance(value, str) and names.is_name(value) and not value.startswith("_")


def _check_step_key(owner: str, key: object) -> None:
    if key is not None and not is_key(key):
        raise WorkflowDefinitionError(
            f"{owner}: {names.quoted(key)} cannot be a key (a name that does not begin with '_')"
        )


def _check_deadline(label: str, value: Any, *, is_instant: bool = False) -> None:
    """Raise ``WorkflowDefinitionError`` unless this is a duration, an aware datetime (``is_instant``) or None."""
    if value is None:
        return
    try:
        check = names.aware_datetime if is_instant else names.timeout_seconds
        check(value, label=label)
    except (TypeError, ValueError) as exc:
        raise WorkflowDefinitionError(str(exc)) from None


def _check_wait_seconds(owner: str, name: str, value: Any) -> None:
    """Raise ``WorkflowDefinitionError`` unless this is a timedelta or seconds."""
    try:
        wait_seconds(value, label=f"{owner}: {name}")
    except (TypeError, ValueError) as exc:
        raise WorkflowDefinitionError(str(exc)) from None
