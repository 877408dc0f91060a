"""What an operator does to one run: each is a button, a REST route and a method of handles.

A face needs no code for a new one: it takes ``label``, ``effect`` and ``inputs`` from the class, asks ``why_not``
whether it can be done now, and executes it. ``registry.STEERING`` has all of them by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, Literal, TypeVar
from uuid import UUID

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from temporalex_django import access
from temporalex_django.access import EDIT, VIEW_PAYLOAD, Operation, policy
from temporalex_django.actions import inline
from temporalex_django.actions.base import CODE, Actor, plain
from temporalex_django.actions.targets import ActionOnRun, RunTarget
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.conf import get_settings
from temporalex_django.core.payloads import check_text
from temporalex_django.engine.storage import RunState
from temporalex_django.errors import ActionNotPossible, PayloadError, UpdateTimeout, WorkflowClosed, WorkflowNotFound
from temporalex_django.models import Chain, Instance

T = TypeVar("T")
Text = str | Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One more thing that an operator says.

    ``kind`` is str, int, bool, float, or object for any JSON. One that is not ``required`` may be left out; ``choices``
    are all that a str may be. ``single``: no two runs can have the same. ``edits``: it gives activities another input,
    which takes permissions of its own (``Steering.all_asked``).
    """

    name: str
    kind: type
    label: Text
    help: Text = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    single: bool = False
    edits: bool = False

    def checked(self, value: Any) -> Any:
        """``value`` if it is of the kind, as it will be stored. Raises ``PayloadError``."""
        what = f"the input {self.name!r}"
        if self.kind is object:
            return plain(value, what=what)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (isinstance(value, self.kind) and number == (self.kind in (int, float))) and not (
            self.kind is float and number
        ):
            raise PayloadError(f"{what} is to be {self.kind.__name__}, not {type(value).__name__}")
        if self.kind is str:
            value = check_text(value, label=what)
        if self.choices and value not in self.choices:
            raise PayloadError(f"{what} is to be one of {', '.join(self.choices)}")
        return value


class Steering(ActionOnRun[T]):
    """Base of what operators do to a run.

    ``label`` is on the button, ``effect`` says in a sentence what will happen, ``done`` what has happened.
    ``destructive``: it cannot be undone. ``of`` "activity" or "timer": ``seq``, the number of the command that made it,
    is an argument too. ``needs_worker``: of no use before a live worker has the code of the activity. ``inputs`` are
    asked for beside the ``reason``. ``selectors`` are asked for by a bulk job: they choose among the activities or
    timers of its runs. ``sees_payloads``: it takes ``view_payload`` besides, since nobody is to answer for an activity
    without having seen its input.

    Each raises ``ActionNotPossible`` with the sentence of ``why_not`` (``WorkflowClosed`` where that is that the run is
    closed), also when it became so after it was asked for; nothing is done then.
    """

    label: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]
    destructive: ClassVar[bool] = False
    of: ClassVar[Literal["run", "activity", "timer"]] = "run"
    needs_worker: ClassVar[bool] = False
    inputs: ClassVar[tuple[Input, ...]] = ()
    selectors: ClassVar[tuple[Input, ...]] = ()
    sees_payloads: ClassVar[bool] = False

    def __init__(
        self, target: RunTarget, *, reason: str = "", seq: int | None = None, by: Actor = CODE, **inputs: Any
    ) -> None:
        """Raises ``PayloadError`` for an input of the wrong kind, ``TypeError`` for an unknown or missing one."""
        super().__init__(by=by)
        self.target = target
        self.reason = check_text(reason, label="the reason")
        if (seq is None) != (self.of == "run") or not (seq is None or type(seq) is int):
            raise TypeError(
                f"{type(self).__name__} takes {'no seq' if self.of == 'run' else f'seq, the number of the {self.of}'}"
            )
        self.seq = seq
        self.given = self.checked(self.inputs, inputs)

    def execute(self) -> T:
        with self.telling_busy(self.of_target):
            return super().execute()

    @classmethod
    def checked(cls, inputs: Iterable[Input], values: Mapping[str, Any]) -> dict[str, Any]:
        """The values by name, as they will be stored. Raises like ``__init__``."""
        known = {one.name: one for one in inputs}
        if unknown := [name for name in values if name not in known]:
            raise TypeError(f"{cls.__name__} takes no {', '.join(unknown)}")
        if missing := [name for name, one in known.items() if one.required and name not in values]:
            raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
        return {name: known[name].checked(value) for name, value in values.items()}

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, most: int
    ) -> list[tuple[UUID, int | None]]:
        """The items of a bulk job over these runs: the run, and the ``seq`` of an activity or timer of it.

        ``selection`` are values of the ``selectors``, by name. Parts to which it cannot be done now are left out. Stops
        at ``most`` of them: a fan-out may have any number.
        """
        del selection, alias
        return [(run, None) for run in runs[:most]]

    @classmethod
    def options(cls, runs: Sequence[UUID], *, alias: str) -> dict[str, dict[str, int]]:
        """The values that each of the ``selectors`` can have for these runs, with how many parts have each."""
        del runs, alias
        return {}

    @classmethod
    def selected_by(cls, filters: Mapping[str, Any]) -> dict[str, Any]:
        """The values of selectors that a filter of runs has, too: runs by their cause, and the activities with it."""
        return {one.name: filters[one.name] for one in cls.selectors if one.name in filters}

    @classmethod
    def count_of(cls, count: int) -> str:
        """The items of a bulk job in words: ``5 activities``."""
        texts = {
            "run": ngettext("%(count)s run", "%(count)s runs", count),
            "activity": ngettext("%(count)s activity", "%(count)s activities", count),
            "timer": ngettext("%(count)s timer", "%(count)s timers", count),
        }
        return texts[cls.of] % {"count": f"{count:,}"}

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        """Why it cannot be done now, as a button shows it; None: it can. No question of permissions.

        Without a ``seq``, of an activity or timer: whether it can be done to any of the run.
        """
        del seq
        return cls.why_not_open(run)

    @classmethod
    def why_not_open(cls, run: Instance) -> str | None:
        """That it is closed."""
        if run.is_open:
            return None
        return str(format_lazy(_("the run is closed already ({status})"), status=run.get_status_display()))

    @classmethod
    def notice_of(cls, run: Instance) -> Text:
        """A notice about that run, before and after, beside ``effect`` and ``done``; empty where there is none."""
        del run
        return ""

    @classmethod
    def effect_on(cls, run: Instance) -> str:
        """The effect on that run, in words."""
        return f"{cls.effect} {cls.notice_of(run)}".strip()

    @property
    def notice(self) -> Text:
        """The notice about the run afterwards."""
        return self.notice_of(self.target.row)

    @property
    def answer(self) -> Text:
        """What has happened, in a sentence, for whoever did it."""
        return self.done

    @classmethod
    def lacks(cls, user: Person, run: Instance | None = None) -> Operation | None:
        """What of all that it asks the access policy this person may not do, to that run or to any; None: he may.

        An operation without a permission is one that the policy refuses to everybody from faces.
        """
        wanted = Operation(action=cls.name, permission=f"{APP}.{cls.permission}")
        return _refused(user, run, wanted, *([VIEW_PAYLOAD] if cls.sees_payloads else ()))

    @classmethod
    def inputs_for(cls, user: Person, run: Instance) -> list[Input]:
        """The inputs that this person may give for that run."""
        edits = not any(one.edits for one in cls.inputs) or _refused(user, run, EDIT, VIEW_PAYLOAD) is None
        return [one for one in cls.inputs if edits or not one.edits]

    @property
    def edits(self) -> bool:
        """Whether it gives activities another input."""
        return any(one.edits and self.given.get(one.name) is not None for one in self.inputs)

    @property
    def all_asked(self) -> Sequence[Operation]:
        """The operation itself, and the ones that another input and an answer for an activity take besides."""
        more = [EDIT] if self.edits else []
        more += [VIEW_PAYLOAD] if self.edits or self.sees_payloads else []
        return [replace(self.asked, edits=self.edits), *(replace(one, workflow=self.of_workflow) for one in more)]

    def admit_activities(self, activities: Iterable[str]) -> None:
        """Ask the access policy about the activities that it is about, once they are known.

        Raises ``ActionNotPermitted``.
        """
        asked = self.all_asked if self.by.user is not None else ()
        for name, one in product(dict.fromkeys(activities), asked):
            access.admit(self.by.user, replace(one, activity=name), alias=self.storage.alias, run=self.row)

    # -- what subclasses use -------------------------------------------------------------------------------------------

    def held(self) -> RunState:
        """The chain under the lock of the open transaction, whatever state it is in; the run is asked ``why_not``.

        Waits at most ``UPDATE_LOCK_WAIT``: then ``UpdateTimeout`` with the code ``busy``. Raises ``NestingError`` in an
        atomic activity of the run.
        """
        target, wait = self.target, get_settings().UPDATE_LOCK_WAIT
        inline.refuse_own_run(target, f"{self.name}()", storage=self.storage)
        run = self.storage.lock_run(target.chain_id, wait=wait)
        if run is None:
            if not Chain.objects.using(self.storage.alias).filter(pk=target.chain_id).exists():
                raise WorkflowNotFound(f"{self.of_target} is gone: somebody has deleted it")
            raise UpdateTimeout(
                f"{self.of_target} is busy: its lock was not free within {wait:g} s, nothing was done; try again",
                code="busy",
            )
        self.require(run)
        return run

    def require(self, run: RunState) -> None:
        """Raises what ``why_not`` says of the locked run."""
        row = Instance.objects.using(self.storage.alias).get(pk=run.run_id)
        if self.seq is not None and run.run_id != self.target.shown:
            self.refuse(_("that was of an earlier run: the chain has gone on as new"), closed=False)
        if why := self.why_not(row, seq=self.seq):
            self.refuse(why, closed=not row.is_open)

    def refuse(self, why: Text, *, closed: bool) -> None:
        """Raises ``ActionNotPossible``, or ``WorkflowClosed``."""
        message = f"{self.name} of {self.of_target} refused: {why}"
        raise WorkflowClosed(message) if closed else ActionNotPossible(message)

    @property
    def of_target(self) -> str:
        return f"{self.target.workflow} {self.target.workflow_id}"


def _refused(user: Person, run: Instance | None, *wanted: Operation) -> Operation | None:
    """The first of these operations that this person may not do, to that run or to any."""
    asked = wanted if run is None else [one.of(run) for one in wanted]
    return next((one for one in asked if not policy().allows(user, one)), None)
