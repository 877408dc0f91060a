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
from temporalex_django.actions.base import CODE, Actor, to_plain_payload
from temporalex_django.actions.targets import RunAction, RunTarget
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
    which takes permissions of its own (``OperatorRunAction.permission_requests``).
    """

    name: str
    kind: type
    label: Text
    help: Text = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    single: bool = False
    edits: bool = False

    def validate(self, value: Any) -> Any:
        """``value`` if it is of the kind, as it will be stored. Raises ``PayloadError``."""
        label = f"the input {self.name!r}"
        if self.kind is object:
            return to_plain_payload(value, label=label)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (isinstance(value, self.kind) and is_number == (self.kind in (int, float))) and not (
            self.kind is float and is_number
        ):
            raise PayloadError(f"{label} is to be {self.kind.__name__}, not {type(value).__name__}")
        if self.kind is str:
            value = check_text(value, label=label)
        if self.choices and value not in self.choices:
            raise PayloadError(f"{label} is to be one of {', '.join(self.choices)}")
        return value


class OperatorRunAction(RunAction[T]):
    """Base of what operators do to a run.

    ``label`` is on the button, ``effect`` says in a sentence what will happen, ``done`` what has happened.
    ``destructive``: it cannot be undone. ``target_kind`` "activity" or "timer": ``seq``, the number of the command that
    made it, is an argument too. ``needs_worker``: of no use before a live worker has the code of the activity.
    ``inputs`` are asked for beside the ``reason``. ``selectors`` are asked for by a bulk job: they choose among the
    activities or timers of its runs. ``sees_payloads``: it takes ``view_payload`` besides, since nobody is to answer
    for an activity without having seen its input.

    Each raises ``ActionNotPossible`` with the sentence of ``why_not`` (``WorkflowClosed`` where that is that the run is
    closed), also when it became so after it was asked for; nothing is done then.
    """

    label: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]
    destructive: ClassVar[bool] = False
    target_kind: ClassVar[Literal["run", "activity", "timer"]] = "run"
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
        if (seq is None) != (self.target_kind == "run") or not (seq is None or type(seq) is int):
            raise TypeError(
                f"{type(self).__name__} takes {'no seq' if self.target_kind == 'run' else f'seq, the number of the {self.target_kind}'}"
            )
        self.seq = seq
        self.input_values = self.validate_inputs(self.inputs, inputs)

    def execute(self) -> T:
        with self.translate_busy(self.run_label):
            return super().execute()

    @classmethod
    def validate_inputs(cls, inputs: Iterable[Input], values: Mapping[str, Any]) -> dict[str, Any]:
        """The values by name, as they will be stored. Raises like ``__init__``."""
        specs = {spec.name: spec for spec in inputs}
        if unknown := [name for name in values if name not in specs]:
            raise TypeError(f"{cls.__name__} takes no {', '.join(unknown)}")
        if missing := [name for name, spec in specs.items() if spec.required and name not in values]:
            raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
        return {name: specs[name].validate(value) for name, value in values.items()}

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, limit: int
    ) -> list[tuple[UUID, int | None]]:
        """The items of a bulk job over these runs: the run, and the ``seq`` of an activity or timer of it.

        ``selection`` are values of the ``selectors``, by name. Parts to which it cannot be done now are left out. Stops
        at ``limit`` of them: a fan-out may have any number.
        """
        del selection, alias
        return [(run, None) for run in runs[:limit]]

    @classmethod
    def selector_options(cls, runs: Sequence[UUID], *, alias: str) -> dict[str, dict[str, int]]:
        """The values that each of the ``selectors`` can have for these runs, with how many parts have each."""
        del runs, alias
        return {}

    @classmethod
    def selection_from(cls, filters: Mapping[str, Any]) -> dict[str, Any]:
        """The values of selectors that a filter of runs has, too: runs by their cause, and the activities with it."""
        return {selector.name: filters[selector.name] for selector in cls.selectors if selector.name in filters}

    @classmethod
    def count_text(cls, count: int) -> str:
        """The items of a bulk job in words: ``5 activities``."""
        texts = {
            "run": ngettext("%(count)s run", "%(count)s runs", count),
            "activity": ngettext("%(count)s activity", "%(count)s activities", count),
            "timer": ngettext("%(count)s timer", "%(count)s timers", count),
        }
        return texts[cls.target_kind] % {"count": f"{count:,}"}

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
    def effect_text(cls, run: Instance) -> str:
        """The effect on that run, in words."""
        return f"{cls.effect} {cls.notice_of(run)}".strip()

    @property
    def notice(self) -> Text:
        """The notice about the run afterwards."""
        return self.notice_of(self.target.row)

    @property
    def done_message(self) -> Text:
        """What has happened, in a sentence, for whoever did it."""
        return self.done

    @classmethod
    def refused_operation(cls, user: Person, run: Instance | None = None) -> Operation | None:
        """What of all that it asks the access policy this person may not do, to that run or to any; None: he may.

        An operation without a permission is one that the policy refuses to everybody from faces.
        """
        operation = Operation(action=cls.name, permission=f"{APP}.{cls.permission}")
        return _first_refused(user, run, operation, *([VIEW_PAYLOAD] if cls.sees_payloads else ()))

    @classmethod
    def inputs_for(cls, user: Person, run: Instance) -> list[Input]:
        """The inputs that this person may give for that run."""
        may_edit = not any(spec.edits for spec in cls.inputs) or _first_refused(user, run, EDIT, VIEW_PAYLOAD) is None
        return [spec for spec in cls.inputs if may_edit or not spec.edits]

    @property
    def edits_input(self) -> bool:
        """Whether it gives activities another input."""
        return any(spec.edits and self.input_values.get(spec.name) is not None for spec in self.inputs)

    @property
    def permission_requests(self) -> Sequence[Operation]:
        """The operation itself, and the ones that another input and an answer for an activity take besides."""
        extra_operations = [EDIT] if self.edits_input else []
        extra_operations += [VIEW_PAYLOAD] if self.edits_input or self.sees_payloads else []
        return [
            replace(self.permission_request, edits=self.edits_input),
            *(replace(operation, workflow=self.workflow_name) for operation in extra_operations),
        ]

    def require_activity_access(self, activities: Iterable[str]) -> None:
        """Ask the access policy about the activities that it is about, once they are known.

        Raises ``ActionNotPermitted``.
        """
        operations = self.permission_requests if self.by.user is not None else ()
        for name, operation in product(dict.fromkeys(activities), operations):
            access.require_access(
                self.by.user, replace(operation, activity=name), alias=self.storage.alias, run=self.row
            )

    # -- what subclasses use -------------------------------------------------------------------------------------------

    def lock_run(self) -> RunState:
        """The chain under the lock of the open transaction, whatever state it is in; the run is asked ``why_not``.

        Waits at most ``UPDATE_LOCK_WAIT``: then ``UpdateTimeout`` with the code ``busy``. Raises ``NestingError`` in an
        atomic activity of the run.
        """
        target, wait = self.target, get_settings().UPDATE_LOCK_WAIT
        inline.refuse_own_run(target, f"{self.name}()", storage=self.storage)
        run = self.storage.lock_run(target.chain_id, wait=wait)
        if run is None:
            if not Chain.objects.using(self.storage.alias).filter(pk=target.chain_id).exists():
                raise WorkflowNotFound(f"{self.run_label} is gone: somebody has deleted it")
            raise UpdateTimeout(
                f"{self.run_label} is busy: its lock was not free within {wait:g} s, nothing was done; try again",
                code="busy",
            )
        self.require_possible(run)
        return run

    def require_possible(self, run: RunState) -> None:
        """Raises what ``why_not`` says of the locked run."""
        row = Instance.objects.using(self.storage.alias).get(pk=run.run_id)
        if self.seq is not None and run.run_id != self.target.selected_run_id:
            self.refuse(_("that was of an earlier run: the chain has gone on as new"), closed=False)
        if reason := self.why_not(row, seq=self.seq):
            self.refuse(reason, closed=not row.is_open)

    def refuse(self, reason: Text, *, closed: bool) -> None:
        """Raises ``ActionNotPossible``, or ``WorkflowClosed``."""
        message = f"{self.name} of {self.run_label} refused: {reason}"
        raise WorkflowClosed(message) if closed else ActionNotPossible(message)

    @property
    def run_label(self) -> str:
        return f"{self.target.workflow} {self.target.workflow_id}"


def _first_refused(user: Person, run: Instance | None, *operations: Operation) -> Operation | None:
    """The first of these operations that this person may not do, to that run or to any."""
    run_operations = operations if run is None else [operation.of(run) for operation in operations]
    return next((operation for operation in run_operations if not policy().allows(user, operation)), None)
