"""What an operator does to one run: each is a button, a REST route and a method of handles.

A face needs no code for a new one: it takes ``label``, ``effect`` and ``inputs`` from the class, asks ``why_not``
whether it can be done now, and executes it. ``registry.STEERING`` has all of them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django.access import Operation, policy
from temporalex_django.actions import inline
from temporalex_django.actions.base import CODE, Actor, plain
from temporalex_django.actions.targets import ActionOnRun, RunTarget
from temporalex_django.authoring.people import APP, Person
from temporalex_django.conf import get_settings
from temporalex_django.core.payloads import text
from temporalex_django.engine.storage import RunState
from temporalex_django.errors import ActionNotPossible, PayloadError, UpdateTimeout, WorkflowClosed, WorkflowNotFound
from temporalex_django.models import Chain, Instance

T = TypeVar("T")
Text = str | Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One more thing that an operator says.

    ``kind`` is str, int, bool, float, or object for any JSON. One that is not ``required`` may be left out; ``choices``
    are all that a str may be. ``single``: no two runs can have the same.
    """

    name: str
    kind: type
    label: Text
    help: Text = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    single: bool = False

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
            value = text(value, what=what)
        if self.choices and value not in self.choices:
            raise PayloadError(f"{what} is to be one of {', '.join(self.choices)}")
        return value


class Steering(ActionOnRun[T]):
    """Base of what operators do to a run.

    ``label`` is on the button, ``effect`` says in a sentence what will happen, ``done`` what has happened.
    ``destructive``: it cannot be undone. ``of`` "activity" or "timer": ``seq``, the number of the command that made it,
    is an argument too. ``needs_worker``: of no use before a live worker has the code of the activity. ``inputs`` are
    asked for beside the ``reason``.

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

    def __init__(
        self, target: RunTarget, *, reason: str = "", seq: int | None = None, by: Actor = CODE, **inputs: Any
    ) -> None:
        """Raises ``PayloadError`` for an input of the wrong kind, ``TypeError`` for an unknown or missing one."""
        super().__init__(by=by)
        self.target = target
        self.reason = text(reason, what="the reason")
        if (seq is None) != (self.of == "run") or not (seq is None or type(seq) is int):
            raise TypeError(
                f"{type(self).__name__} takes {'no seq' if self.of == 'run' else f'seq, the number of the {self.of}'}"
            )
        self.seq = seq
        self.given = self._checked(inputs)

    def execute(self) -> T:
        with self.telling_busy(self.of_target):
            return super().execute()

    @classmethod
    def _checked(cls, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Those that were given, by name."""
        known = {one.name: one for one in cls.inputs}
        if unknown := [name for name in inputs if name not in known]:
            raise TypeError(f"{cls.__name__} takes no {', '.join(unknown)}")
        if missing := [name for name, one in known.items() if one.required and name not in inputs]:
            raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
        return {name: known[name].checked(value) for name, value in inputs.items()}

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
        """What to know of that run before and after, beside ``effect`` and ``done``; empty where there is nothing."""
        del run
        return ""

    @classmethod
    def effect_on(cls, run: Instance) -> str:
        """What will happen to that run."""
        return f"{cls.effect} {cls.notice_of(run)}".strip()

    @property
    def notice(self) -> Text:
        """What to know of the run afterwards."""
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
        asked = wanted if run is None else wanted.of(run)
        return None if policy().allows(user, asked) else asked

    # -- what subclasses use -------------------------------------------------------------------------------------------

    def held(self) -> RunState:
        """The chain under the lock of the open transaction, whatever state it is in; the run is asked ``why_not``.

        Waits at most ``UPDATE_LOCK_WAIT``: then ``UpdateTimeout`` with the code ``busy``. Raises ``NestingError`` in an
        atomic activity of the run.
        """
        target, wait = self.target, get_settings().UPDATE_LOCK_WAIT
        inline.refuse_own_run(target, f"{self.name}()", storage=self.storage)
        run = self.storage.hold(target.chain_id, wait=wait)
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
