"""Human tasks, approvals, and the four eyes that they may ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from temporalex_django.core.failures import exception_message
from temporalex_django.core.messages.sender import Sender
from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import deep_copy
from temporalex_django.core.pending_commands import PendingCommands
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.runtime_protocol import WorkflowRuntime
from temporalex_django.core.typed_dicts import WaitInfo
from temporalex_django.core.units.ivar import IVar
from temporalex_django.errors import (
    ActionNotPermitted,
    FourEyes,
    HumanTaskClosed,
    NondeterminismError,
    PayloadError,
    WorkflowDefinitionError,
)

# --- human tasks ------------------------------------------------------------------------------------------------------
#
# Human tasks: the decisions that a run asks people for, with their reminders, escalations and permissions.
#
# A decision is a request (see ``core.process``), which a turn judges. The open tasks are a function of the history,
# like everything in this module. Hosts keep rows of them, so that people find them.


#: Asks the host whether a word for candidates (see ``HumanTaskSpec``) includes a person. The word
#: ``stands_in_for:<key>`` asks whether the person stands in for another one.
Permits = Callable[[str, Sender], bool]
#: The candidates of a task that names none: everybody who may send messages to runs. Code may decide it as well.
DEFAULT_CANDIDATE = "perm:temporalex_django.signal_instance"
OVERDUE = "overdue"
#: Largest number of reminders of a task. Without it, a task without a due date would start timers for ever.
MAX_REMINDERS: Final = 100
_ADVICE: Final = "Restore the old code, or keep the old path for old runs with api.patched()"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSpec:
    """The form for the data of a decision.

    - ``kind`` "type": a dataclass, a TypedDict or the like, in ``type``. The data is checked where the decision is
      judged. ``schema`` is the JSON schema.
    - ``kind`` "form": a form class of Django with the dotted path ``name``. The data is checked before.

    ``digest`` changes with the form.
    """

    kind: str
    name: str
    digest: str
    schema: Mapping[str, Any] | None = None
    type: Any = field(default=None, compare=False)

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "digest": self.digest, "schema": self.schema}


@lru_cache(maxsize=1_000)
def build_form_spec(form: Any, label: str) -> FormSpec:
    """Return the form that workflow code names: a type, or the dotted path of a Django form class.

    ``label`` begins the message of the ``WorkflowDefinitionError`` for a value that is not a form.
    """
    if isinstance(form, str):
        if not all(part.isidentifier() for part in form.split(".")) or "." not in form:
            raise WorkflowDefinitionError(f"{label}: form {form!r} is not the dotted path of a form class")
        return FormSpec(kind="form", name=form, digest=_digest(form.encode()))
    try:
        schema = msgspec.json.schema(form)
    except Exception as exc:  # noqa: BLE001 - any error of msgspec means that it is no form
        raise WorkflowDefinitionError(
            f"{label}: form must be a dataclass, a TypedDict or a msgspec type, or the dotted path of a form class: "
            f"{form!r} has no schema ({exception_message(exc)})"
        ) from None
    name = getattr(form, "__qualname__", str(form))
    return FormSpec(kind="type", name=name, digest=_digest(msgspec.json.encode(schema)), schema=schema, type=form)


def _digest(data: bytes) -> str:
    return hashlib.blake2s(data, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskSpec:
    """The question of a human task and its candidates, as code declares them.

    - ``candidates`` are words for the people who may decide: ``user:<username>``, ``group:<name>`` or
      ``perm:<app.codename>``. Without any, ``DEFAULT_CANDIDATE`` applies.
    - ``remind`` is the time between two reminders in seconds, of which there are at most ``MAX_REMINDERS``.
    - ``escalate_after`` is the time in seconds after which ``escalation_candidates`` may decide as well.
    - ``four_eyes`` is a scope of ``core.human_tasks``.
    - ``shows`` is the plain data that people decide about; None means nothing but the title.
    - ``label`` is the name of the task in errors.
    """

    title: str
    label: str
    candidates: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ("approved", "rejected")
    four_eyes: str = ""
    form: FormSpec | None = None
    shows: Any = None
    remind: float | None = None
    escalate_after: float | None = None
    escalation_candidates: tuple[str, ...] = ()

    @property
    def question(self) -> dict[str, Any]:
        """The question as plain data: the part of the spec that a decision answers.

        It is recorded with the decision and compared on replay. A decision must not become the answer to another
        question.
        """
        form = None if self.form is None else {"name": self.form.name, "digest": self.form.digest}
        return question(self.title, candidates=self.candidates, outcomes=self.outcomes, form=form, shows=self.shows)


def question(
    title: str, *, candidates: Iterable[str], outcomes: Iterable[str], form: Mapping[str, str] | None, shows: Any
) -> dict[str, Any]:
    """Return the question of a human task as plain data: all arguments, with a digest of the data shown.

    ``form`` has the name and digest of the form, or is None. ``shows`` is the plain data that people see, or None.
    """
    question_fields = {"title": title, "asked": [*candidates], "outcomes": [*outcomes], "form": form}
    return question_fields if shows is None else {**question_fields, "shows": codec.digest(shows)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskState:
    """The present state of a human task of a run.

    - ``key`` identifies the task within its run.
    - ``candidates`` are words for the people who may decide now, including those after an escalation.
    - ``barred`` has the reasons why excluded users may not decide it, by the key of the user.
    - ``requested_by`` is the person who started the run, if they are known.
    - ``reminders`` counts the reminders sent so far.
    - ``ending`` is "decided", "overdue", "cancelled" (the run does not wait for it any more) or "run_closed". It is
      empty while the task is open.
    - ``decided_for`` is the name of the person in whose place ``decided_by`` decided, or empty.
    """

    key: str
    spec: HumanTaskSpec
    candidates: tuple[str, ...]
    opened_at: datetime
    due_at: datetime | None = None
    barred: Mapping[str, str] = field(default_factory=dict)
    requested_by: Sender | None = None
    reminders: int = 0
    reminded_at: datetime | None = None
    escalated_at: datetime | None = None
    closed_at: datetime | None = None
    ending: str = ""
    outcome: str = ""
    decided_by: Sender | None = None
    decided_for: str = ""
    comment: str = ""

    def as_closed(self, ending: str, at: datetime, **decision_fields: Any) -> HumanTaskState:
        """Return a copy that was closed at the time ``at``.

        ``decision_fields`` are fields to set: who decided, and how.
        """
        return replace(self, ending=ending, closed_at=at, **decision_fields)

    @property
    def outcome_text(self) -> str:
        """The ending of the task in words."""
        return ending_text(self.ending, self.closed_at, outcome=self.outcome, decided_by=str(self.decided_by or ""))


def ending_text(ending: str, closed_at: datetime | None, *, outcome: str, decided_by: str) -> str:
    """Return how a human task ended, as a clause such as "ann decided 'approved' at …".

    ``decided_by`` is the name of the person who decided, or empty.
    """
    at = "" if closed_at is None else closed_at.isoformat(timespec="seconds")
    if ending == "decided":
        return f"{decided_by or 'code'} decided {outcome!r} at {at}"
    if ending == OVERDUE:
        return f"nobody had decided by {at}, when it was due"
    return f"the run stopped waiting for it at {at}" if ending == "cancelled" else f"the run ended at {at}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskChange:
    """A human task that a turn has changed, in its new state, with the names of its ``changes``.

    The names are opened, reminded, escalated, barred (a user became excluded) and closed. The tuple is empty if the
    changes are not known.
    """

    changes: tuple[str, ...]
    task: HumanTaskState


def _require_data_fits(task: HumanTaskState, request: Mapping[str, Any]) -> None:
    """Raise ``PayloadError`` for data that do not fit. The task's own Django form has checked them before the turn."""
    form = task.spec.form
    if form is None:
        return
    if form.kind != "form":
        codec.convert(deep_copy(request.get("data")), form.type, label=f"the data for {task.spec.label}")
    elif request.get("judged") != form.name and not request.get("again"):
        raise PayloadError(f"the form {form.name} checks the data of {task.spec.label}: decide it there")


class HumanTasks:
    """The human tasks of one run in memory (executor): decisions that people are asked for.

    ``changes`` has the changes of the current activation, by key of the task. ``deciders`` has the keys of people who
    have decided a task, as an ordered set.
    """

    __slots__ = (
        "_key_count",
        "_pending_commands",
        "_run_context",
        "_timers",
        "changes",
        "closed_tasks",
        "deciders",
        "open_tasks",
    )

    def __init__(self, run_context: RunContext, pending_commands: PendingCommands) -> None:
        self._run_context = run_context
        self._pending_commands = pending_commands
        self._timers: dict[str, dict[str, int]] = {}  # numbers of commands, by task and by purpose
        self._key_count = 0
        self.open_tasks: dict[str, HumanTaskState] = {}
        self.closed_tasks: dict[str, HumanTaskState] = {}
        self.changes: dict[str, HumanTaskChange] = {}
        self.deciders: dict[str, None] = {}

    # -- called by request judges -------------------------------------------------------------------------------------

    def next_key(self) -> str:
        """Return the key for a new human task to which the code gives no key: the next number, as text."""
        self._key_count += 1
        return str(self._key_count)

    def add(
        self,
        key: str,
        spec: HumanTaskSpec,
        *,
        due_at: datetime | None,
        requested_by: Sender | None = None,
        deciders: Iterable[str] = (),
    ) -> None:
        """Open the task ``key`` with the question ``spec``, which is due at ``due_at`` or has no due date (None).

        The reminders and the escalation are timers; the caller handles the due date. Under four eyes,
        ``requested_by``, who started the run (None for code), may not decide, nor may ``deciders``: keys of people who
        made earlier decisions that this object has not recorded.
        """
        now, run_context = self._run_context.now, self._run_context
        self._record_change(
            "opened",
            HumanTaskState(
                key=key,
                spec=spec,
                candidates=spec.candidates or (DEFAULT_CANDIDATE,),
                opened_at=now,
                due_at=due_at,
                barred=barred_people(spec.four_eyes, run_context.snapshot, [*self.deciders, *deciders]),
                requested_by=requested_by,
            ),
        )
        self._timers[key] = {}
        if spec.remind is not None:
            self._start_timer(key, "remind", spec.remind, self._remind)
        if spec.escalate_after is not None:
            self._start_timer(key, "escalate", spec.escalate_after, self._escalate)

    def close(self, key: str, ending: str, **decision_fields: Any) -> None:
        """Close a task with an ending (see ``HumanTaskState``), and cancel its timers. Does nothing if it is not open.

        ``decision_fields`` are fields of ``HumanTaskState`` that say who decided and how.
        """
        task = self.open_tasks.pop(key, None)
        if task is None:
            return
        for number in self._timers.pop(key, {}).values():
            self._pending_commands.cancel_timer(number)
        task = self.closed_tasks[key] = task.as_closed(ending, self._run_context.now, **decision_fields)
        self.changes[key] = HumanTaskChange(changes=("closed",), task=task)
        if task.decided_by is not None and task.decided_by.key:
            self.deciders[task.decided_by.key] = None
            self.update_barred()

    def update_barred(self) -> None:
        """Exclude people from open tasks if they became excluded after these tasks were opened."""
        for task in [*self.open_tasks.values()]:
            barred = barred_people(task.spec.four_eyes, self._run_context.snapshot, self.deciders)
            if not barred.keys() <= task.barred.keys():
                self._record_change("barred", replace(task, barred={**barred, **task.barred}))

    # -- timers -------------------------------------------------------------------------------------------------------

    def _start_timer(self, key: str, purpose: str, seconds: float, fire: Callable[[str], None]) -> None:
        number = self._pending_commands.start_timer(seconds, lambda: fire(key), task=key, then=purpose)
        self._timers[key][purpose] = number

    def _remind(self, key: str) -> None:
        task = self.open_tasks[key]
        reminders = task.reminders + 1
        self._record_change("reminded", replace(task, reminders=reminders, reminded_at=self._run_context.now))
        del self._timers[key]["remind"]
        if task.spec.remind is not None and reminders < MAX_REMINDERS:
            self._start_timer(key, "remind", task.spec.remind, self._remind)

    def _escalate(self, key: str) -> None:
        task = self.open_tasks[key]
        del self._timers[key]["escalate"]
        candidates = (
            *task.candidates,
            *(word for word in task.spec.escalation_candidates if word not in task.candidates),
        )
        self._record_change("escalated", replace(task, candidates=candidates, escalated_at=self._run_context.now))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def open_task(self, key: str) -> HumanTaskState:
        """Return the open task ``key``. Raises ``HumanTaskClosed``."""
        task = self.open_tasks.get(key)
        if task is None:
            raise self.closed_error(key)
        return task

    def judge(self, key: str, request: Mapping[str, Any], permits: Permits) -> None:
        """Judge the decision of the open task ``key``.

        ``permits(word, sender)`` says whether a word for candidates includes a person. ``request`` has these keys:

        - ``event``, ``data``, ``by``, ``by_key``, ``comment``;
        - ``word``: a word that permits the person and is not a candidate of the task (somebody passed the task on to
          them);
        - ``for``: key and name of the person for whom they stand in;
        - ``judged``: the name of the form that checked the data;
        - ``again``: True if the decision was accepted once and is redelivered.

        Raises ``HumanTaskClosed``, ``ActionNotPermitted``, ``FourEyes`` and ``PayloadError``.
        """
        task = self.open_task(key)
        decider = request.get("by") or "code without a user"
        label = f"{self._run_context.info.id}: {decider} may not decide {task.spec.label}"
        # Code that decides in a person's name is trusted.
        is_direct_decision = request.get("person") and request.get("task")
        if (task.spec.candidates or is_direct_decision) and not request.get("again"):
            self._require_candidate(task, request, permits, label)
        if task.spec.four_eyes:
            require_four_eyes(label, task.barred, key=request.get("by_key"))
            if isinstance(principal := request.get("for"), Mapping):
                require_four_eyes(label, task.barred, key=principal["key"])
        _require_data_fits(task, request)
        question = task.spec.question
        if any(question.get(name) != value for name, value in request.get("question", {}).items()):
            raise HumanTaskClosed(
                f"{self._run_context.run_label}: {task.spec.label} now asks a different question from the one that "
                "was decided"
            )

    def recorded_fields(self, key: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the history records of a decision of the open task ``key``, besides its event, key and data.

        ``request`` has the keys that ``judge`` describes. Raises ``HumanTaskClosed``.
        """
        task = self.open_task(key)
        # The question of the request is that of the task, unless the history has accepted it and the code has changed.
        question = {**task.spec.question, **request.get("question", {})}
        recorded_fields = {name: request[name] for name in ("by", "by_key", "comment", "for") if request.get(name)}
        recorded_fields |= {"question": question, "shown": request.get("shown") or self._display_digest(task)}
        if isinstance(principal := recorded_fields.get("for"), Mapping):
            recorded_fields["for"] = principal["name"]
        return recorded_fields

    def _display_digest(self, task: HumanTaskState) -> str:
        """Return the digest of all that the page shows. It does not reveal the title, which a codec hides."""
        due = None if task.due_at is None else task.due_at.isoformat()
        return codec.digest({**task.spec.question, "due": due, "four_eyes": task.spec.four_eyes})

    def require_same_question(self, key: str, payload: Mapping[str, Any]) -> None:
        """Raise ``NondeterminismError`` if a recorded decision answers another question than the code asks now.

        Histories without a recorded question are not compared.
        """
        recorded = payload.get("question")
        if recorded is None:
            return
        task = self.open_tasks.get(key)
        if task is None:
            raise unexpected_decision(self._run_context.run_label, key)
        run, decision_text = self._run_context.run_label, f"decision of the human task {key!r}"
        question = task.spec.question
        # Only the names of the differing parts go into the message: the values are payload. See decision 47.
        if differing := [name for name in question if question[name] != recorded.get(name)]:
            parts = ", ".join(differing)
            raise NondeterminismError(
                f"{run}: the history has a decision of the human task {key!r}, but the code now asks a different "
                f"question there ({parts}), which nobody has decided. {_ADVICE}",
                recorded=decision_text,
                produced=f"a different question ({parts})",
            )

    def key_by_question(self, question: Any) -> str | None:
        """Return the key of the only open task with this question; None if there is none, or more than one."""
        keys = [key for key, task in self.open_tasks.items() if task.spec.question == question]
        return keys[0] if len(keys) == 1 else None

    def _require_candidate(
        self, task: HumanTaskState, request: Mapping[str, Any], permits: Permits, label: str
    ) -> None:
        """Raise ``ActionNotPermitted`` unless the sender of a decision is a candidate."""
        # A substitute is judged as the person for whom they stand in, once the host has confirmed the relation.
        principal, extra_candidate = request.get("for"), request.get("word")
        sender = Sender(request.get("by_key") or "", request.get("by") or "")
        if request.get("person"):
            if principal is not None and permits(f"stands_in_for:{principal['key']}", sender):
                sender = Sender(principal["key"], principal["name"])
            elif principal is not None:
                raise ActionNotPermitted(f"{label}: they do not stand in for {principal['name']}")
            candidates = task.candidates if extra_candidate is None else (*task.candidates, extra_candidate)
            if any(permits(candidate, sender) for candidate in candidates):
                return
        raise ActionNotPermitted(f"{label}: this requires {roles_text(task.candidates)} (pass by=user)")

    def require_this_run(self, request: Mapping[str, Any]) -> None:
        """Raise ``HumanTaskClosed`` for a decision that was made for an earlier run of the chain.

        Such a decision may have waited while the run continued as new. The tasks of the next run have the same keys.
        """
        if request.get("run") not in (None, self._run_context.info.run_id):
            raise HumanTaskClosed(
                f"{self._run_context.run_label}: the run that asked for {request['event']!r} has ended, and another "
                "one continues: look at the decisions that it asks for"
            )

    def closed_error(self, key: str) -> HumanTaskClosed:
        """Return the error for a task that is no longer open, or never was."""
        task = self.closed_tasks.get(key)
        if task is None:
            return HumanTaskClosed(f"{self._run_context.run_label} has no open human task {key!r} now")
        return HumanTaskClosed(
            f"{self._run_context.run_label}: the human task {key!r} is no longer open: {task.outcome_text}"
        )

    # -- called by the executor, and by hosts -------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a new activation: forget the changes of the last one."""
        self.changes = {}

    def latest_changes(self, *, closed: bool, every: bool) -> list[HumanTaskChange]:
        """Return the changes of the current activation.

        With ``closed``, the activation has closed the run, so that all open tasks end. With ``every``, open tasks that
        did not change are included.
        """
        changes = dict(self.changes)
        for key, task in self.open_tasks.items():
            if closed:
                ended_task = task.as_closed("run_closed", self._run_context.now)
                changes[key] = HumanTaskChange(changes=("closed",), task=ended_task)
            elif every and key not in changes:
                changes[key] = HumanTaskChange(changes=(), task=task)
        return list(changes.values())

    def _record_change(self, change: str, task: HumanTaskState) -> None:
        """Store the new state of an open task, and note ``change``, such as "reminded"."""
        self.open_tasks[task.key] = task
        before = self.changes.get(task.key)
        changes = (change,) if before is None else (*before.changes, change)
        self.changes[task.key] = HumanTaskChange(changes=tuple(dict.fromkeys(changes)), task=task)


def unexpected_decision(run: str, key: str) -> NondeterminismError:
    """Return the error for a recorded decision that the code does not ask for at this point."""
    return NondeterminismError(
        f"{run}: the history has a decision of the human task {key!r}, but the code does not ask for it at this point. "
        f"{_ADVICE}",
        recorded=f"decision of the human task {key!r}",
        produced="no such human task",
    )


def require_four_eyes(label: str, barred: Mapping[str, str], *, key: str | None) -> None:
    """Raise ``FourEyes`` if the user with this key is excluded from the task.

    ``barred`` maps keys of excluded users to reasons, and ``label`` names the task. Raises ``ActionNotPermitted``
    without a key, because nothing can then show that a different person decides.
    """
    # Without a key nothing can show that a different person decides.
    if not key:
        raise ActionNotPermitted(
            f"{label}: this requires a user (pass by=user), to check that somebody else started the run"
        )
    if key in barred:
        raise FourEyes(f"{label}: {barred[key]}, so a different user must decide")


def roles_text(candidates: Iterable[str]) -> str:
    """Return the candidates of a task, such as ``user:anna`` and ``group:managers``, in words for an error message."""
    spelt = {"user": "the name", "group": "the role", "perm": "the role"}
    parts = (word.partition(":") for word in candidates)
    return " or ".join(f"{spelt[kind]} {name!r}" for kind, _, name in parts)


def due_time(now: datetime, seconds: float | None) -> datetime | None:
    """Return the time that is ``seconds`` after ``now``; None if ``seconds`` is None."""
    return None if seconds is None else now + timedelta(seconds=seconds)


# --- approvals --------------------------------------------------------------------------------------------------------
#
# ``api.approval``: human tasks that workflow code asks for.


#: Prefix of the label of a wait for a decision; the title follows.
DECISION_PREFIX: Final = "decision "


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of an approval.

    - ``outcome`` is one of the outcomes of the approval, or ``overdue`` if nobody decided in time. ``by`` is then None.
    - ``data`` is the data of the form.
    - ``at`` is the time of the decision, or the time at which it became overdue.
    - ``stood_in_for`` is the name of the person in whose place somebody decided, or empty.
    - ``shown`` is the digest of the data that people saw (``shows`` of ``api.approval``). It is empty if they saw the
      title alone.
    """

    outcome: str
    data: Any = None
    by: Sender | None = None
    at: datetime
    comment: str = ""
    stood_in_for: str = ""
    shown: str = ""

    def covers(self, value: Any) -> bool:
        """Return True if a person decided about this value: the data shown to them equals it as plain data.

        Returns False if nobody decided in time, and if no data was shown. Raises ``PayloadError`` for a value that is
        no payload.
        """
        return bool(self.shown) and self.shown == codec.digest(codec.to_plain(value, label="the value of covers()"))


class Approvals:
    """The part that judges decisions of people for ``api.approval`` in workflow code; declared steps have another one.

    It is attached to the run when the run asks for its first approval.
    """

    def __init__(self, runtime: WorkflowRuntime) -> None:
        self._runtime = runtime
        self._tasks: HumanTasks = runtime.human_tasks
        self._decision_ivars: dict[str, IVar] = {}
        self._due_timers: dict[str, int] = {}

    async def request_decision(self, spec: HumanTaskSpec, due: float | None) -> Decision:
        """Open a human task and wait for its decision.

        ``due`` is in seconds. When it has passed, the decision has the outcome ``overdue``. A wait that is cancelled
        closes the task.
        """
        runtime, tasks = self._runtime, self._tasks
        key, now = tasks.next_key(), runtime.run_context.now
        spec = replace(spec, label=f"the human task {key!r}")  # the readers of errors may not see the title
        deadline = due_time(now, due)
        ivar = self._decision_ivars[key] = IVar(f"{DECISION_PREFIX}{spec.title}")
        ivar.wait_info = _build_wait_info(key, spec, now, deadline)
        # The snapshot is part of the history, so a replay finds the same starter.
        snapshot = runtime.run_context.snapshot or {}
        requester = Sender(snapshot["started_by"], snapshot.get("started_as", "")) if "started_by" in snapshot else None
        tasks.add(key, spec, due_at=deadline, requested_by=requester)
        if due is not None:
            self._due_timers[key] = runtime.pending_commands.start_timer(
                due, lambda: self._expire(key), task=key, then=OVERDUE
            )
        try:
            decision: Decision = await ivar
            return decision
        finally:
            self._close(key, "cancelled")

    def _expire(self, key: str) -> None:
        self._due_timers.pop(key)
        ivar = self._decision_ivars[key]
        # Close before the IVar is filled: the ``_close`` of the waiter then finds nothing to do.
        self._close(key, OVERDUE)
        ivar.put(Decision(outcome=OVERDUE, at=self._runtime.run_context.now))

    def _close(self, key: str, ending: str, **decision_fields: Any) -> None:
        """Close the task, if its approval is still open, and cancel its timer. See ``HumanTasks.close``."""
        if self._decision_ivars.pop(key, None) is None:
            return
        if (timer := self._due_timers.pop(key, None)) is not None:
            self._runtime.pending_commands.cancel_timer(timer)
        self._tasks.close(key, ending, **decision_fields)

    # -- request judge ------------------------------------------------------------------------------------------------

    def judge(self, request: dict[str, Any], permits: Permits) -> None:
        """Judge a decision.

        ``request`` and ``permits`` are those of ``HumanTasks.judge``. Raises ``HumanTaskClosed``, ``PayloadError`` and
        the other errors of ``HumanTasks.judge``.
        """
        self._tasks.require_this_run(request)
        key, outcome = self._resolve_key(request), request["event"]
        task = self._tasks.open_task(key)
        if outcome not in task.spec.outcomes:
            raise PayloadError(f"{outcome!r} is not one of the outcomes: {', '.join(task.spec.outcomes)}")
        self._tasks.judge(key, request, permits)

    def build_payload(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the payload that the history records for a decision. Raises ``HumanTaskClosed``, ``PayloadError``."""
        key = self._resolve_key(request)
        label = f"the data for {self._tasks.open_task(key).spec.label}"
        data = codec.to_plain(request.get("data"), label=label, limit=self._runtime.run_context.payload_limit)
        # Pages show the beginning of it: who decided, and what they wrote.
        return {"event": request["event"], **self._tasks.recorded_fields(key, request), "step": key, "data": data}

    def _resolve_key(self, request: dict[str, Any]) -> str:
        """Find the task by its question if a reset or fork delivers again: the key may mean another task by now."""
        # New code may number its tasks otherwise, but the question identifies the task. See decision 47.
        key: str = request.get("step") or ""
        question = request.get("question") if request.get("again") else None
        task = self._tasks.open_tasks.get(key)
        if question is None or (task is not None and task.spec.question == question):
            return key
        return self._tasks.key_by_question(question) or key

    def apply(self, payload: dict[str, Any]) -> None:
        """Apply a decision that was accepted, in this activation or when the history was made."""
        key = payload["step"]
        self._tasks.require_same_question(key, payload)
        ivar, task = self._decision_ivars.get(key), self._tasks.open_tasks.get(key)
        if ivar is None or task is None:
            return  # the code asks for something else now; the comparison of commands reports it
        form, data = task.spec.form, payload.get("data")
        form_type = form.type if form is not None and form.kind == "type" else None
        try:
            decoded = codec.convert(deep_copy(data), form_type, label=f"the data for {task.spec.label}")
        except PayloadError as exc:  # the form has changed since the decision
            ivar.fail(exc)
            self._close(key, "cancelled")
            return
        decider = Sender(payload["by_key"], payload.get("by", "")) if payload.get("by_key") else None
        decision_fields = {"comment": payload.get("comment", ""), "decided_for": payload.get("for", "")}
        self._close(key, "decided", outcome=payload["event"], decided_by=decider, **decision_fields)
        ivar.put(
            Decision(
                outcome=payload["event"],
                data=decoded,
                by=decider,
                at=self._runtime.run_context.now,
                comment=decision_fields["comment"],
                stood_in_for=decision_fields["decided_for"],
                shown=payload.get("question", {}).get("shows", ""),
            )
        )


def _build_wait_info(key: str, spec: HumanTaskSpec, now: datetime, due: datetime | None) -> WaitInfo:
    wait_info: WaitInfo = {"kind": "human_task", "name": key, "label": spec.title, "since": now.isoformat()}
    wait_info["events"] = [*spec.outcomes]
    wait_info["role"] = ", ".join(word.partition(":")[2] for word in spec.candidates)
    if due is not None:
        wait_info["until"] = due.isoformat()
    return wait_info


# --- four eyes --------------------------------------------------------------------------------------------------------
#
# Four eyes: the people who may not decide a human task, because a different person must decide. See decision 49.
#
# A run excludes people by their keys. It starts with some of them: its snapshot names who started its chain, and has
# the other excluded users under ``EXCLUDED``, with a reason. People who decide its human tasks are added when they
# decide. All functions are pure.


#: Scopes of four eyes: the chain with the runs that it comes from, or one run. An empty text means no four eyes.
CHAIN: Final = "chain"
RUN: Final = "run"
#: The key in a snapshot, and in the mark of a reset or fork, of the mapping from user keys to reasons.
EXCLUDED: Final = "excluded"
STARTED, FORKED, DECIDED, ORIGIN, SCHEDULED = "started", "forked", "decided", "origin", "scheduled"
_REASON_TEXTS: Final = {
    STARTED: "they started the run",
    FORKED: "they forked the run",
    DECIDED: "they decided an earlier approval",
    ORIGIN: "they started a run that this one comes from",
    SCHEDULED: "they triggered, backfilled or edited the schedule of the run",
}
#: Reasons that also count in the scope of one run.
_RUN_REASONS: Final = (STARTED, FORKED, SCHEDULED)
_STARTER_KEYS: Final = ("started_by", "started_as")

Snapshot = Mapping[str, Any] | None


def parse_scope(option: object) -> str | None:
    """Return the scope that the option ``four_eyes=`` names: ``CHAIN``, ``RUN``, or an empty text for no four eyes.

    True means ``CHAIN``, and False no four eyes. Returns None for an invalid value.
    """
    if isinstance(option, bool):
        return CHAIN if option else ""
    return option if isinstance(option, str) and option in (CHAIN, RUN) else None


def barred_people(scope: str, snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, str]:
    """Return the users who are excluded from a human task: the reason as a sentence, by the key of the user.

    ``scope`` is the scope of its four eyes; with an empty scope nobody is excluded. ``deciders`` are the keys of people
    who have decided a task of the same run.
    """
    if not scope:
        return {}
    reasons = _exclusions_of(snapshot)
    if scope == RUN:
        reasons = {key: reason for key, reason in reasons.items() if reason in _RUN_REASONS}
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    if starter := (snapshot or {}).get("started_by"):
        reasons[starter] = STARTED
    return {key: _REASON_TEXTS[reason] for key, reason in reasons.items()}


def next_run_snapshot(snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, Any] | None:
    """Return the starter of a chain and the users who may not decide in it, to pass them to its next run.

    They are a part of the snapshot: the data that a run starts with besides its input. ``snapshot`` is that of this
    run, and ``deciders`` are the keys of people who decided its human tasks. Returns None if there is nothing to pass
    on.
    """
    starter = {name: snapshot[name] for name in _STARTER_KEYS if name in snapshot} if snapshot else {}
    reasons = _exclusions_of(snapshot)
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    return {**starter, EXCLUDED: reasons} if reasons else starter or None


def child_snapshot(snapshot: Snapshot, deciders: Iterable[str]) -> dict[str, Any] | None:
    """Return the users whom a run excludes from decisions when it starts a child; None if it excludes nobody.

    The child gets them in its snapshot, the data that it starts with besides its input. ``snapshot`` is that of the
    parent, and ``deciders`` are the keys of people who decided its human tasks.
    """
    # The reasons of the parent become ``ORIGIN``: these people did not start or fork the child itself.
    reasons = {key: reason if reason == DECIDED else ORIGIN for key, reason in _exclusions_of(snapshot).items()}
    reasons |= dict.fromkeys((key for key in deciders if key not in reasons), DECIDED)
    if starter := (snapshot or {}).get("started_by"):
        reasons[starter] = ORIGIN
    return {EXCLUDED: reasons} if reasons else None


def fork_snapshot(snapshot: Snapshot, forker: Sender | None) -> dict[str, Any] | None:
    """Return the snapshot of a fork: the one of the forked run, with the person who forks it as an excluded user.

    ``forker`` is None if code forks the run. A snapshot is data that a run starts with besides its input; it names the
    users who may not decide.
    """
    if forker is None or not forker.key:
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), forker.key: FORKED}}


def add_starter(snapshot: Snapshot, starter: Sender) -> dict[str, Any]:
    """Return the snapshot of a run that has not begun, after one more person (``starter``) has started it.

    From then on this person counts as the one who started the run. Those who did so before stay excluded from its
    decisions.
    """
    reasons = _exclusions_of(snapshot)
    if earlier := (snapshot or {}).get("started_by"):
        reasons[earlier] = STARTED
    reasons.pop(starter.key, None)
    people = {EXCLUDED: reasons} if reasons else {}
    others = {name: value for name, value in (snapshot or {}).items() if name != EXCLUDED}
    return {**others, **people, "started_by": starter.key, "started_as": starter.name}


def add_schedulers(snapshot: Snapshot, keys: Iterable[str]) -> dict[str, Any] | None:
    """Return the snapshot of a run that a schedule starts, with the users who had a part in that as excluded users.

    ``keys`` are the keys of those who triggered or backfilled it, or edited its times or its input.
    """
    starter = (snapshot or {}).get("started_by")
    reasons = {key: SCHEDULED for key in keys if key and key != starter}
    if not reasons:
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), **reasons}}


def mark_attributes(snapshot: Snapshot) -> dict[str, Any]:
    """Return the users whom ``snapshot`` excludes, as attributes of the mark in a copied history.

    The mark follows the part of the history that a reset or fork copies. The result is empty if nobody is excluded.
    """
    reasons = _exclusions_of(snapshot)
    return {EXCLUDED: reasons} if reasons else {}


def snapshot_after_mark(snapshot: Snapshot, mark: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the snapshot of a run that was reset or forked, once its replay has passed the mark.

    ``snapshot`` is the one that holds for the copied part of the history. ``mark`` has the attributes from
    ``mark_attributes``.
    """
    if not (exclusions := mark.get(EXCLUDED)):
        return None if snapshot is None else dict(snapshot)
    return {**(snapshot or {}), EXCLUDED: {**_exclusions_of(snapshot), **exclusions}}


def _exclusions_of(snapshot: Snapshot) -> dict[str, str]:
    return dict((snapshot or {}).get(EXCLUDED) or {})
