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
from temporalex_django.core.calls import Calls
from temporalex_django.core.copying import copied
from temporalex_django.core.failures import message_of
from temporalex_django.core.senders import Sender
from temporalex_django.core.standing import Standing
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
ANYBODY = "perm:temporalex_django.signal_instance"
OVERDUE = "overdue"
#: After so many nobody is reminded any more: a task without a due date would be timers for ever.
MOST_REMINDERS: Final = 100
_WAY_OUT: Final = "Put the code back, or keep the old path for old runs with api.patched()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
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
def form_of(given: Any, what: str) -> Form:
    """The form that workflow code names. Raises ``WorkflowDefinitionError`` for what can be none."""
    if isinstance(given, str):
        if not all(part.isidentifier() for part in given.split(".")) or "." not in given:
            raise WorkflowDefinitionError(f"{what}: form {given!r} is no dotted path of a form class")
        return Form(kind="form", name=given, digest=_digest(given.encode()))
    try:
        schema = msgspec.json.schema(given)
    except Exception as exc:  # noqa: BLE001 - whatever msgspec makes of it, it is no form
        raise WorkflowDefinitionError(
            f"{what}: form must be a dataclass, a TypedDict or a msgspec type, or the dotted path of a form class: "
            f"{given!r} has no schema ({message_of(exc)})"
        ) from None
    name = getattr(given, "__qualname__", str(given))
    return Form(kind="type", name=name, digest=_digest(msgspec.json.encode(schema)), schema=schema, type=given)


def _digest(data: bytes) -> str:
    return hashlib.blake2s(data, digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What is asked of whom, as code says it.

    ``asked``: words for who may decide, ``user:<username>``, ``group:<name>`` or ``perm:<app.codename>``; nobody in
    particular where there are none. ``remind`` and ``after`` are seconds: between two reminders (``MOST_REMINDERS`` at
    most), and until ``others``
    may decide, too. ``four_eyes`` is a scope of ``core.four_eyes``. ``shows`` are plain data that people decide about
    (None: nothing but the title). ``called`` is how errors call it.
    """

    title: str
    called: str
    asked: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ("approved", "rejected")
    four_eyes: str = ""
    form: Form | None = None
    shows: Any = None
    remind: float | None = None
    after: float | None = None
    others: tuple[str, ...] = ()

    @property
    def question(self) -> dict[str, Any]:
        """The question as code asks it, as plain data: what a decision answers.

        Recorded with the decision and compared on replay: whoever decided did not decide anything else.
        """
        form = None if self.form is None else {"name": self.form.name, "digest": self.form.digest}
        return question(self.title, asked=self.asked, outcomes=self.outcomes, form=form, shows=self.shows)


def question(
    title: str, *, asked: Iterable[str], outcomes: Iterable[str], form: Mapping[str, str] | None, shows: Any
) -> dict[str, Any]:
    """A question as plain data, with the digest of what people are shown; ``form`` by its name and digest."""
    found = {"title": title, "asked": [*asked], "outcomes": [*outcomes], "form": form}
    return found if shows is None else {**found, "shows": payloads.digest(shows)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTaskState:
    """A human task of a run as it stands.

    ``key`` tells it from the others of the run. ``barred``: keys of users who may not decide it, with the reason.
    ``ending``: decided, overdue, cancelled (nobody waits for it any more), run_closed; "" while it is open.
    """

    key: str
    asking: Asking
    asked: tuple[str, ...]
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

    def closed(self, ending: str, at: datetime, **decided: Any) -> HumanTaskState:
        """The same, with what became of it."""
        return replace(self, ending=ending, closed_at=at, **decided)

    @property
    def happened(self) -> str:
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

    ``changed``: what the present activation did, by key. ``decided``: keys of the people who have decided one.
    """

    __slots__ = ("_calls", "_standing", "_timers", "_visits", "changed", "decided", "ended", "open")

    def __init__(self, standing: Standing, calls: Calls) -> None:
        self._standing = standing
        self._calls = calls
        self._timers: dict[str, dict[str, int]] = {}  # numbers of commands, by task and by what they are for
        self._visits = 0
        self.open: dict[str, HumanTaskState] = {}
        self.ended: dict[str, HumanTaskState] = {}
        self.changed: dict[str, HumanTaskChange] = {}
        self.decided: dict[str, None] = {}

    # -- called by whoever asks ---------------------------------------------------------------------------------------

    def next_key(self) -> str:
        """Of a task that is known by its number alone."""
        self._visits += 1
        return str(self._visits)

    def add(
        self,
        key: str,
        asking: Asking,
        *,
        due_at: datetime | None,
        requested_by: Sender | None = None,
        decided: Iterable[str] = (),
    ) -> None:
        """Ask it, from now on. Its reminders and escalation are timers; when it is due is the caller's business.

        ``decided``: keys of people whose decisions the caller alone knows.
        """
        now, standing = self._standing.now, self._standing
        self._note(
            "opened",
            HumanTaskState(
                key=key,
                asking=asking,
                asked=asking.asked or (ANYBODY,),
                opened_at=now,
                due_at=due_at,
                barred=four_eyes.barred(asking.four_eyes, standing.snapshot, [*self.decided, *decided]),
                requested_by=requested_by,
            ),
        )
        self._timers[key] = {}
        if asking.remind is not None:
            self._start(key, "remind", asking.remind, self._remind)
        if asking.after is not None:
            self._start(key, "escalate", asking.after, self._escalate)

    def close(self, key: str, ending: str, **decided: Any) -> None:
        """It is not open any more."""
        task = self.open.pop(key, None)
        if task is None:
            return
        for number in self._timers.pop(key, {}).values():
            self._calls.cancel_timer(number)
        task = self.ended[key] = task.closed(ending, self._standing.now, **decided)
        self.changed[key] = HumanTaskChange(changes=("closed",), task=task)
        if task.decided_by is not None and task.decided_by.key:
            self.decided[task.decided_by.key] = None
            self.bar_again()

    def bar_again(self) -> None:
        """Shut people out of open tasks who have been found since these were opened."""
        for task in [*self.open.values()]:
            barred = four_eyes.barred(task.asking.four_eyes, self._standing.snapshot, self.decided)
            if not barred.keys() <= task.barred.keys():
                self._note("barred", replace(task, barred={**barred, **task.barred}))

    # -- timers -------------------------------------------------------------------------------------------------------

    def _start(self, key: str, what: str, seconds: float, fire: Callable[[str], None]) -> None:
        number = self._calls.start_timer(seconds, lambda: fire(key), task=key, then=what)
        self._timers[key][what] = number

    def _remind(self, key: str) -> None:
        task = self.open[key]
        reminders = task.reminders + 1
        self._note("reminded", replace(task, reminders=reminders, reminded_at=self._standing.now))
        del self._timers[key]["remind"]
        if task.asking.remind is not None and reminders < MOST_REMINDERS:
            self._start(key, "remind", task.asking.remind, self._remind)

    def _escalate(self, key: str) -> None:
        task = self.open[key]
        del self._timers[key]["escalate"]
        asked = (*task.asked, *(word for word in task.asking.others if word not in task.asked))
        self._note("escalated", replace(task, asked=asked, escalated_at=self._standing.now))

    # -- a decision ---------------------------------------------------------------------------------------------------

    def judge(self, key: str, request: Mapping[str, Any], permits: Permits) -> dict[str, Any]:
        """Whether a decision may be: gives what of it goes into the history beside event, key and data.

        ``request``: event, data, by, by_key, comment; ``word`` by which he may where that is not one of the task
        (handed on to him), ``for`` (key and name) of the one for whom he stands in, ``judged``: the name of the form
        that its data went through; ``again``: it was let through once, and is delivered again. Raises
        ``HumanTaskClosed``, ``ActionNotPermitted``, ``FourEyes``, ``PayloadError``.
        """
        task = self.open.get(key)
        if task is None:
            raise self.gone(key)
        what = f"{self._standing.info.id}: {request.get('by') or 'nobody'} may not decide {task.asking.called}"
        decides = request.get("person") and request.get("task")  # of what code says in his name, it knows best
        if (task.asking.asked or decides) and not request.get("again"):
            self._require_asked(task, request, permits, what)
        if task.asking.four_eyes:
            require_other_eyes(what, task.barred, key=request.get("by_key"))
            if isinstance(principal := request.get("for"), Mapping):
                require_other_eyes(what, task.barred, key=principal["key"])
        form = task.asking.form
        if form is not None and form.kind == "form":
            if request.get("judged") != form.name and not request.get("again"):
                raise PayloadError(
                    f"the data of {task.asking.called} are judged by the form {form.name}: decide it there"
                )
        elif form is not None:
            payloads.fit(copied(request.get("data")), form.type, what=f"the data for {task.asking.called}")
        question = task.asking.question
        if any(question.get(name) != value for name, value in request.get("question", {}).items()):
            raise HumanTaskClosed(
                f"{self._standing.run}: {task.asking.called} asks another question than the one that was decided"
            )
        found = {name: request[name] for name in ("by", "by_key", "comment", "for") if request.get(name)}
        found |= {"question": question, "shown": request.get("shown") or self._shown(task)}
        return {**found, "for": principal["name"]} if isinstance(principal := found.get("for"), Mapping) else found

    def _shown(self, task: HumanTaskState) -> str:
        """The digest of all that the page of a task shows of it: the question, and when it is due.

        A codec hides the title; the digest of it does not tell it.
        """
        due = None if task.due_at is None else task.due_at.isoformat()
        return payloads.digest({**task.asking.question, "due": due, "four_eyes": task.asking.four_eyes})

    def require_same_question(self, key: str, payload: Mapping[str, Any]) -> None:
        """Raise ``NondeterminismError`` where a recorded decision answers another question than the code asks now.

        Histories without a recorded question are not compared.
        """
        recorded = payload.get("question")
        if recorded is None:
            return
        task = self.open.get(key)
        if task is None:
            raise nobody_asked(self._standing.run, key)
        run, seen = self._standing.run, f"decision of the human task {key!r}"
        question = task.asking.question
        if differing := [name for name in question if question[name] != recorded.get(name)]:
            parts = ", ".join(differing)
            raise NondeterminismError(
                f"{run}: the history has a decision of the human task {key!r}, and the code asks another question there "
                f"now ({parts}): nobody has decided that one. {_WAY_OUT}",
                recorded=seen,
                produced=f"another question ({parts})",
            )

    def by_question(self, question: Any) -> str | None:
        """The key of the one open task that asks this question; None where there is none, or are several."""
        keys = [key for key, task in self.open.items() if task.asking.question == question]
        return keys[0] if len(keys) == 1 else None

    def _require_asked(self, task: HumanTaskState, request: Mapping[str, Any], permits: Permits, what: str) -> None:
        principal, word = request.get("for"), request.get("word")
        somebody = Sender(request.get("by_key") or "", request.get("by") or "")
        if request.get("person"):
            if principal is not None and permits(f"stands_in_for:{principal['key']}", somebody):
                somebody = Sender(principal["key"], principal["name"])
            elif principal is not None:
                raise ActionNotPermitted(f"{what}: he does not stand in for {principal['name']}")
            words = task.asked if word is None else (*task.asked, word)
            if any(permits(one, somebody) for one in words):
                return
        raise ActionNotPermitted(f"{what}: it takes {roles(task.asked)} of a user (by=user)")

    def require_this_run(self, request: Mapping[str, Any]) -> None:
        """A decision may have waited while its run went on as another one, whose tasks have the same keys.

        Raises ``HumanTaskClosed``.
        """
        if request.get("run") not in (None, self._standing.info.run_id):
            raise HumanTaskClosed(
                f"{self._standing.run}: the run that asked for {request['event']!r} has ended, and another one goes on: "
                "look at what that one asks"
            )

    def gone(self, key: str) -> HumanTaskClosed:
        """That it is not open any more, or never was."""
        task = self.ended.get(key)
        if task is None:
            return HumanTaskClosed(f"{self._standing.run} asks nobody for the human task {key!r} at this time")
        return HumanTaskClosed(f"{self._standing.run}: the human task {key!r} is not open any more: {task.happened}")

    # -- called by the executor, and by hosts -------------------------------------------------------------------------

    def begin(self) -> None:
        """A new activation."""
        self.changed = {}

    def _note(self, change: str, task: HumanTaskState) -> None:
        self.open[task.key] = task
        before = self.changed.get(task.key)
        changes = (change,) if before is None else (*before.changes, change)
        self.changed[task.key] = HumanTaskChange(changes=tuple(dict.fromkeys(changes)), task=task)


def nobody_asked(run: str, key: str) -> NondeterminismError:
    """The history has a decision, and the code asks nobody for it at this point."""
    return NondeterminismError(
        f"{run}: the history has a decision of the human task {key!r}, and the code asks nobody for it at this point. "
        f"{_WAY_OUT}",
        recorded=f"decision of the human task {key!r}",
        produced="no such human task",
    )


def require_other_eyes(what: str, barred: Mapping[str, str], *, key: str | None) -> None:
    """Raises ``FourEyes`` for who is barred, ``ActionNotPermitted`` for who has no key to be known by."""
    if not key:
        raise ActionNotPermitted(f"{what}: it takes a user (by=user), to see that another one has started it")
    if key in barred:
        raise FourEyes(f"{what}: {barred[key]}, and somebody else has to decide")


def roles(words: Iterable[str]) -> str:
    """Whom these words mean, for an error."""
    spelt = {"user": "the name", "group": "the role", "perm": "the role"}
    found = (word.partition(":") for word in words)
    return " or ".join(f"{spelt[kind]} {name!r}" for kind, _, name in found)


def due_at(now: datetime, seconds: float | None) -> datetime | None:
    """When something is due."""
    return None if seconds is None else now + timedelta(seconds=seconds)
