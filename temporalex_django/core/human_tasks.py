"""What a run asks people: the human tasks that are open in it, their reminders and escalations, and who may decide.

The decision is a request (see ``core.process``), judged in a turn. What is open is a function of the history, like
everything here; hosts keep rows of it, so that people find it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec

from temporalex_django.core import four_eyes, payloads
from temporalex_django.core.copying import deep_copy
from temporalex_django.core.failures import exception_message
from temporalex_django.core.pending_commands import PendingCommands
from temporalex_django.core.run_context import RunContext
from temporalex_django.core.senders import Sender
from temporalex_django.errors import (
    ActionNotPermitted,
    FourEyes,
    HumanTaskClosed,
    NondeterminismError,
    PayloadError,
    WorkflowDefinitionError,
)

#: Asks the host whether somebody is meant by a word (see ``Asking.asked``), or stands in: ``stands_in_for:<key>``.
Permits = Callable[[str, Sender], bool]
#: Who decides where nobody in particular is asked: code, and whoever may send messages to runs.
DEFAULT_CANDIDATE = "perm:temporalex_django.signal_instance"
OVERDUE = "overdue"
#: After so many nobody is reminded any more: a task without a due date would be timers for ever.
MAX_REMINDERS: Final = 100
_ADVICE: Final = "Put the code back, or keep the old path for old runs with api.patched()"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSpec:
    """What the data of a decision are to be.

    ``kind`` "type": a dataclass, TypedDict or the like, judged where the decision is; ``schema`` is its JSON schema.
    "form": a form class of Django of that ``name`` (its dotted path), judged before. ``digest`` changes with it.
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
    """The form that workflow code names. Raises ``WorkflowDefinitionError`` for what can be none."""
    if isinstance(form, str):
        if not all(part.isidentifier() for part in form.split(".")) or "." not in form:
            raise WorkflowDefinitionError(f"{label}: form {form!r} is no dotted path of a form class")
        return FormSpec(kind="form", name=form, digest=_digest(form.encode()))
    try:
        schema = msgspec.json.schema(form)
    except Exception as exc:  # noqa: BLE001 - whatever msgspec makes of it, it is no form
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
    """What is asked of whom, as code says it.

    ``candidates``: words for who may decide, ``user:<username>``, ``group:<name>`` or ``perm:<app.codename>``; nobody
    in particular where there are none. ``remind`` and ``escalate_after`` are seconds: between two reminders
    (``MAX_REMINDERS`` at most), and until ``escalation_candidates`` may decide, too. ``four_eyes`` is a scope of
    ``core.four_eyes``. ``shows`` are plain data that people decide about (None: nothing but the title). ``label`` is
    how errors call it.
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
        """The question as code asks it, as plain data: what a decision answers.

        Recorded with the decision and compared on replay: whoever decided did not decide anything else.
        """
        form = None if self.form is None else {"name": self.form.name, "digest": self.form.digest}
        return question(self.title, candidates=self.candidates, outcomes=self.outcomes, form=form, shows=self.shows)


def question(
    title: str, *, candidates: Iterable[str], outcomes: Iterable[str], form: Mapping[str, str] | None, shows: Any
) -> dict[str, Any]:
    """A question as plain data, with the digest of what people are shown; ``form`` by its name and digest."""
    question_fields = {"title": title, "asked": [*candidates], "outcomes": [*outcomes], "form": form}
    return question_fields if shows is None else {**question_fields, "shows": payloads.digest(shows)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskState:
    """A human task of a run as it stands.

    ``key`` tells it from the others of the run. ``barred``: keys of users who may not decide it, with the reason.
    ``ending``: decided, overdue, cancelled (nobody waits for it any more), run_closed; "" while it is open.
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
        """The same, with what became of it."""
        return replace(self, ending=ending, closed_at=at, **decision_fields)

    @property
    def outcome_text(self) -> str:
        """What became of it, in words."""
        at = "" if self.closed_at is None else self.closed_at.isoformat(timespec="seconds")
        if self.ending == "decided":
            return f"{self.decided_by or 'code'} decided {self.outcome!r} at {at}"
        if self.ending == OVERDUE:
            return f"nobody had decided by {at}, when it was due"
        return (
            f"the run did not wait for it any more at {at}" if self.ending == "cancelled" else f"the run ended at {at}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskChange:
    """What a turn did to a human task: opened, reminded, escalated, barred, closed; nothing where that is not known."""

    changes: tuple[str, ...]
    task: HumanTaskState


class HumanTasks:
    """Those of one executor.

    ``changes``: what the present activation did, by key. ``deciders``: keys of the people who have decided one.
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
        self._timers: dict[str, dict[str, int]] = {}  # numbers of commands, by task and by what they are for
        self._key_count = 0
        self.open_tasks: dict[str, HumanTaskState] = {}
        self.closed_tasks: dict[str, HumanTaskState] = {}
        self.changes: dict[str, HumanTaskChange] = {}
        self.deciders: dict[str, None] = {}

    # -- called by whoever asks ---------------------------------------------------------------------------------------

    def next_key(self) -> str:
        """Of a task that is known by its number alone."""
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
        """Ask it, from now on. Its reminders and escalation are timers; when it is due is the caller's business.

        ``deciders``: keys of people whose decisions the caller alone knows.
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
                barred=four_eyes.barred_people(spec.four_eyes, run_context.snapshot, [*self.deciders, *deciders]),
                requested_by=requested_by,
            ),
        )
        self._timers[key] = {}
        if spec.remind is not None:
            self._start_timer(key, "remind", spec.remind, self._remind)
        if spec.escalate_after is not None:
            self._start_timer(key, "escalate", spec.escalate_after, self._escalate)

    def close(self, key: str, ending: str, **decision_fields: Any) -> None:
        """It is not open any more."""
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
        """Shut people out of open tasks who have been found since these were opened."""
        for task in [*self.open_tasks.values()]:
            barred = four_eyes.barred_people(task.spec.four_eyes, self._run_context.snapshot, self.deciders)
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

    # -- a decision ---------------------------------------------------------------------------------------------------

    def judge(self, key: str, request: Mapping[str, Any], permits: Permits) -> dict[str, Any]:
        """Whether a decision may be: gives what of it goes into the history beside event, key and data.

        ``request``: event, data, by, by_key, comment; ``word`` by which he may where that is not one of the task
        (handed on to him), ``for`` (key and name) of the one for whom he stands in, ``judged``: the name of the form
        that its data went through; ``again``: it was let through once, and is delivered again. Raises
        ``HumanTaskClosed``, ``ActionNotPermitted``, ``FourEyes``, ``PayloadError``.
        """
        task = self.open_tasks.get(key)
        if task is None:
            raise self.closed_error(key)
        label = f"{self._run_context.info.id}: {request.get('by') or 'nobody'} may not decide {task.spec.label}"
        is_direct_decision = request.get("person") and request.get(
            "task"
        )  # of what code says in his name, it knows best
        if (task.spec.candidates or is_direct_decision) and not request.get("again"):
            self._require_candidate(task, request, permits, label)
        if task.spec.four_eyes:
            require_four_eyes(label, task.barred, key=request.get("by_key"))
            if isinstance(principal := request.get("for"), Mapping):
                require_four_eyes(label, task.barred, key=principal["key"])
        form = task.spec.form
        if form is not None and form.kind == "form":
            if request.get("judged") != form.name and not request.get("again"):
                raise PayloadError(f"the data of {task.spec.label} are judged by the form {form.name}: decide it there")
        elif form is not None:
            payloads.convert(deep_copy(request.get("data")), form.type, label=f"the data for {task.spec.label}")
        question = task.spec.question
        if any(question.get(name) != value for name, value in request.get("question", {}).items()):
            raise HumanTaskClosed(
                f"{self._run_context.run_label}: {task.spec.label} asks another question than the one that was decided"
            )
        recorded_fields = {name: request[name] for name in ("by", "by_key", "comment", "for") if request.get(name)}
        recorded_fields |= {"question": question, "shown": request.get("shown") or self._display_digest(task)}
        return (
            {**recorded_fields, "for": principal["name"]}
            if isinstance(principal := recorded_fields.get("for"), Mapping)
            else recorded_fields
        )

    def _display_digest(self, task: HumanTaskState) -> str:
        """The digest of all that the page of a task shows of it: the question, and when it is due.

        A codec hides the title; the digest of it does not tell it.
        """
        due = None if task.due_at is None else task.due_at.isoformat()
        return payloads.digest({**task.spec.question, "due": due, "four_eyes": task.spec.four_eyes})

    def require_same_question(self, key: str, payload: Mapping[str, Any]) -> None:
        """Raise ``NondeterminismError`` where a recorded decision answers another question than the code asks now.

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
        if differing := [name for name in question if question[name] != recorded.get(name)]:
            parts = ", ".join(differing)
            raise NondeterminismError(
                f"{run}: the history has a decision of the human task {key!r}, and the code asks another question there "
                f"now ({parts}): nobody has decided that one. {_ADVICE}",
                recorded=decision_text,
                produced=f"another question ({parts})",
            )

    def key_by_question(self, question: Any) -> str | None:
        """The key of the one open task that asks this question; None where there is none, or are several."""
        keys = [key for key, task in self.open_tasks.items() if task.spec.question == question]
        return keys[0] if len(keys) == 1 else None

    def _require_candidate(
        self, task: HumanTaskState, request: Mapping[str, Any], permits: Permits, label: str
    ) -> None:
        principal, extra_candidate = request.get("for"), request.get("word")
        sender = Sender(request.get("by_key") or "", request.get("by") or "")
        if request.get("person"):
            if principal is not None and permits(f"stands_in_for:{principal['key']}", sender):
                sender = Sender(principal["key"], principal["name"])
            elif principal is not None:
                raise ActionNotPermitted(f"{label}: he does not stand in for {principal['name']}")
            candidates = task.candidates if extra_candidate is None else (*task.candidates, extra_candidate)
            if any(permits(candidate, sender) for candidate in candidates):
                return
        raise ActionNotPermitted(f"{label}: it takes {roles_text(task.candidates)} of a user (by=user)")

    def require_this_run(self, request: Mapping[str, Any]) -> None:
        """A decision may have waited while its run went on as another one, whose tasks have the same keys.

        Raises ``HumanTaskClosed``.
        """
        if request.get("run") not in (None, self._run_context.info.run_id):
            raise HumanTaskClosed(
                f"{self._run_context.run_label}: the run that asked for {request['event']!r} has ended, and another one goes on: "
                "look at what that one asks"
            )

    def closed_error(self, key: str) -> HumanTaskClosed:
        """That it is not open any more, or never was."""
        task = self.closed_tasks.get(key)
        if task is None:
            return HumanTaskClosed(f"{self._run_context.run_label} asks nobody for the human task {key!r} at this time")
        return HumanTaskClosed(
            f"{self._run_context.run_label}: the human task {key!r} is not open any more: {task.outcome_text}"
        )

    # -- called by the executor, and by hosts -------------------------------------------------------------------------

    def begin(self) -> None:
        """A new activation."""
        self.changes = {}

    def _record_change(self, change: str, task: HumanTaskState) -> None:
        self.open_tasks[task.key] = task
        before = self.changes.get(task.key)
        changes = (change,) if before is None else (*before.changes, change)
        self.changes[task.key] = HumanTaskChange(changes=tuple(dict.fromkeys(changes)), task=task)


def unexpected_decision(run: str, key: str) -> NondeterminismError:
    """The history has a decision, and the code asks nobody for it at this point."""
    return NondeterminismError(
        f"{run}: the history has a decision of the human task {key!r}, and the code asks nobody for it at this point. "
        f"{_ADVICE}",
        recorded=f"decision of the human task {key!r}",
        produced="no such human task",
    )


def require_four_eyes(label: str, barred: Mapping[str, str], *, key: str | None) -> None:
    """Raises ``FourEyes`` for who is barred, ``ActionNotPermitted`` for who has no key to be known by."""
    if not key:
        raise ActionNotPermitted(f"{label}: it takes a user (by=user), to see that another one has started it")
    if key in barred:
        raise FourEyes(f"{label}: {barred[key]}, and somebody else has to decide")


def roles_text(candidates: Iterable[str]) -> str:
    """Whom these words mean, for an error."""
    spelt = {"user": "the name", "group": "the role", "perm": "the role"}
    parts = (word.partition(":") for word in candidates)
    return " or ".join(f"{spelt[kind]} {name!r}" for kind, _, name in parts)


def due_time(now: datetime, seconds: float | None) -> datetime | None:
    """When something is due."""
    return None if seconds is None else now + timedelta(seconds=seconds)
