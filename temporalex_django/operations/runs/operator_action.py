"""The operations that an operator performs on one run: each has a button, a REST route, a command and a handle method.

An interface needs no code for a new operation. It takes ``label``, ``summary``, ``effect`` and ``inputs`` from the
class, asks ``why_not`` if the operation is possible now, and executes it. ``registry.STEERING`` has all operations by
name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, ClassVar, Literal, NoReturn, TypeVar
from uuid import UUID, uuid4

from django.db.models import Count
from django.utils.functional import Promise
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.access import EDIT, VIEW_PAYLOAD, Operation, policy
from temporalex_django.authoring import activity
from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import get_settings
from temporalex_django.core.names import TEMPORAL, fit_note
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.engine import operator_overrides
from temporalex_django.engine.contracts.records import RunState, TaskResult, TaskState
from temporalex_django.engine.operator_overrides import OperatorRule, refusal_error, why_not
from temporalex_django.errors import ActivityNotFound, UpdateTimeout, WorkflowNotFound
from temporalex_django.models import ActivityTask, Chain, Instance
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.read.failure_groups import faults_of, with_faults
from temporalex_django.operations.run_lookup import RunAction

T = TypeVar("T")
Text = str | Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The description of an input of an operation, from which interfaces build a form field or an option.

    - ``kind``: the type of the value: str, int, bool, float, or object for any JSON.
    - ``required``: True if the input may not be left out.
    - ``choices``: the allowed values of a str; empty for any.
    - ``single``: True if no two runs can have the same value, so that a bulk job on many runs cannot have the input.
    - ``edits``: True if it replaces the input of activities, which needs the permissions to edit and to see payloads.
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
        """Return ``value`` as it will be stored.

        Raises ``PayloadError`` if it is not of the kind, or not one of the choices.
        """
        limit = get_settings().MAX_PAYLOAD_BYTES
        return operator_overrides.check_input(self.name, value, kind=self.choices or self.kind, limit=limit)


class OperatorRunAction(RunAction[T]):
    """Base class of the operations that an operator performs on one run.

    - ``label``: the text of the button.
    - ``summary``: a short sentence in the imperative, which interfaces show before ``effect``.
    - ``effect`` and ``done``: sentences that say what will happen, and what has happened.
    - ``destructive``: True if the operation cannot be undone.
    - ``target_kind``: "run", "activity" or "timer". For the last two, ``seq`` is an argument too: the number of the
      command that created the activity or timer.
    - ``needs_worker``: True if the operation has no effect before a live worker has the code of the activity.
    - ``inputs``: what is asked for besides the ``reason``.
    - ``selectors``: inputs of a bulk job that choose among the activities or timers of its runs.
    - ``done_status``: the status of a run for which nothing is left to do, if the operation closes runs.
    - ``rule``: its rule, which determines ``permission`` and ``sees_payloads``; see ``OPERATOR_RULES``.

    If ``why_not`` names a reason, ``execute`` raises ``ActionNotPossible`` with it, or ``WorkflowClosed`` if the run is
    closed. ``execute`` asks ``why_not`` again when the chain is locked, and changes nothing when it raises.
    """

    label: ClassVar[Promise]
    summary: ClassVar[Promise]
    effect: ClassVar[Promise]
    done: ClassVar[Promise]
    destructive: ClassVar[bool] = False
    target_kind: ClassVar[Literal["run", "activity", "timer"]] = "run"
    needs_worker: ClassVar[bool] = False
    inputs: ClassVar[tuple[Input, ...]] = ()
    selectors: ClassVar[tuple[Input, ...]] = ()
    sees_payloads: ClassVar[bool] = False
    done_status: ClassVar[str] = ""
    rule: ClassVar[OperatorRule]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls):
            # An operation of a project has no row there.
            cls.rule = operator_overrides.OPERATOR_RULES.get(cls.name) or OperatorRule(cls.permission)
            cls.permission = cls.rule.permission
            cls.sees_payloads = cls.sees_payloads or cls.rule.sees_payloads

    def __init__(
        self, target: RunTarget, *, reason: str = "", seq: int | None = None, by: Actor = CODE, **inputs: Any
    ) -> None:
        """Validate the arguments; the values of ``inputs`` are passed by name.

        ``seq`` is the number of the command that created the activity or timer; None for an operation on the whole run.

        Raises ``PayloadError`` for an input of the wrong kind, and ``TypeError`` for an unknown or missing one.
        """
        super().__init__(by=by)
        self.target = target
        self.reason = fit_note(reason, label="the reason")
        if (seq is None) != (self.target_kind == "run") or not (seq is None or type(seq) is int):
            rule = "does not accept seq"
            if self.target_kind != "run":
                rule = f"requires seq, the number of the {self.target_kind}"
            raise TypeError(f"{type(self).__name__} {rule}")
        self.seq = seq
        self.once_id = str(uuid4())
        self.input_values = self.validate_inputs(self.inputs, inputs)

    def execute(self) -> T:
        with self.translate_busy(self.run_label):
            return super().execute()

    def check(self) -> None:
        """Check that the user may do this, and that the backend of the run can. Raises ``ActionNotPossible`` too."""
        super().check()
        if self.target.backend == TEMPORAL and (reason := self.cluster_refusal()):
            self.refuse(reason, closed=False)

    def perform_remotely(self) -> T:
        assert self.remote is not None
        outcome: T = self.remote.operate(self)
        return outcome

    @classmethod
    def validate_inputs(cls, inputs: Iterable[Input], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of ``inputs`` by name, as they will be stored.

        Raises ``PayloadError`` for a value of the wrong kind, and ``TypeError`` for an unknown or missing one.
        """
        specs = {spec.name: spec for spec in inputs}
        if unknown := [name for name in values if name not in specs]:
            raise TypeError(f"{cls.__name__} has no input {', '.join(unknown)}")
        if missing := [name for name, spec in specs.items() if spec.required and name not in values]:
            raise TypeError(f"{cls.__name__} requires {', '.join(missing)}")
        return {name: specs[name].validate(value) for name, value in values.items()}

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, limit: int
    ) -> list[tuple[UUID, int | None]]:
        """Return the items of a bulk job over these runs: pairs of a run id and the ``seq`` of an activity or timer.

        For an operation on runs, each run is an item with None as ``seq``. ``selection`` has the values of
        ``selectors``, by name. Activities and timers for which the operation is impossible now are left out. At most
        ``limit`` items are returned.
        """
        del selection, alias
        return [(run, None) for run in runs[:limit]]

    @classmethod
    def selector_options(cls, runs: Sequence[UUID], *, alias: str) -> dict[str, dict[str, int]]:
        """Return the values from which a user can choose for each of the ``selectors`` of a bulk job.

        The result maps the name of a selector to a dict: the values that occur in these runs, and how often each
        occurs.
        """
        del runs, alias
        return {}

    @classmethod
    def selection_from(cls, filters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of ``selectors`` that a filter of runs implies.

        For example, a filter of runs by ``cause`` also selects the activities that fail with that cause.
        """
        return {selector.name: filters[selector.name] for selector in cls.selectors if selector.name in filters}

    @classmethod
    def count_text(cls, count: int) -> str:
        """Return ``count`` with the word for what this operation is performed on, such as ``5 activities``."""
        texts = {
            "run": ngettext("%(count)s run", "%(count)s runs", count),
            "activity": ngettext("%(count)s activity", "%(count)s activities", count),
            "timer": ngettext("%(count)s timer", "%(count)s timers", count),
        }
        return texts[cls.target_kind] % {"count": f"{count:,}"}

    @classmethod
    def refusal(cls, run: Instance, *, seq: int | None = None) -> str | None:
        """Return the text that says why the operation is impossible for the run, or None if it is possible.

        Either the backend of the run does not have it, or ``why_not`` says why.
        """
        if run.backend == TEMPORAL and (reason := cls.cluster_refusal()):
            return str(reason)
        return cls.why_not(run, seq=seq)

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        """Return the text that says why the operation is impossible now, or None if it is possible.

        Permissions are not considered. For an operation on activities or timers, None as ``seq`` asks if it is possible
        for any of the run's.
        """
        del seq
        return cls.why_not_run(run)

    @classmethod
    def why_not_run(cls, run: Instance) -> str | None:
        """Return why the operation is impossible for a run in this state, whatever its activities are, or None."""
        reason = why_not(cls.rule.run, run)
        return reason and gettext(reason).format(status=run.get_status_display())

    def is_done(self, run: Instance) -> bool:
        """Return True if the operation is impossible only because the run is in the wanted state already.

        It is asked only about a run for which ``why_not`` names a reason.
        """
        return run.status == self.done_status

    @classmethod
    def notice_of(cls, run: Instance) -> Text:
        """Return a further sentence about the run, which interfaces show after ``effect`` and after ``done``.

        It is empty if there is nothing to say.
        """
        del run
        return ""

    @classmethod
    def description(cls) -> str:
        """Return ``summary`` and ``effect`` as one text: without ``summary``, ``effect`` may be hard to understand."""
        return f"{cls.summary} {cls.effect}"

    @classmethod
    def effect_text(cls, run: Instance) -> str:
        """Return what the operation will do to that run: its description, and the notice about the run."""
        return f"{cls.description()} {cls.notice_of(run)}".strip()

    @property
    def acts_at_once(self) -> bool:
        """True if the backend of the run does this at once, so that it is refused inside a transaction."""
        return self.target.backend == TEMPORAL and self.cluster == "at once"

    @property
    def notice(self) -> Text:
        """The further sentence about the run, after the operation has changed it; empty if there is nothing to say."""
        return self.notice_of(self.target.row)

    @property
    def done_message(self) -> Text:
        """The sentence that tells the person who performed the operation what has happened."""
        return self.done

    @classmethod
    def refused_operation(cls, user: Person, run: Instance | None = None) -> Operation | None:
        """Return the first operation that the access policy refuses to this user, or None if nothing is refused.

        ``run`` is the run that they want to operate; None asks about runs in general. A returned operation without a
        permission is refused to everybody who uses an interface.
        """
        operation = Operation(action=cls.name, permission=f"{APP}.{cls.permission}")
        return _first_refused(user, run, operation, *([VIEW_PAYLOAD] if cls.sees_payloads else ()))

    @classmethod
    def inputs_for(cls, user: Person, run: Instance) -> list[Input]:
        """Return the inputs that this user may give for that run; those that edit payloads need further permissions."""
        may_edit = not any(spec.edits for spec in cls.inputs) or _first_refused(user, run, EDIT, VIEW_PAYLOAD) is None
        return [spec for spec in cls.inputs if may_edit or not spec.edits]

    @property
    def edits_input(self) -> bool:
        """True if the caller passed an input that replaces the arguments of activities.

        The user needs further permissions for such an input.
        """
        return any(spec.edits and self.input_values.get(spec.name) is not None for spec in self.inputs)

    @property
    def permission_requests(self) -> Sequence[Operation]:
        """The operations that the access policy must allow: this one, and those about payloads that it implies.

        An operation that replaces inputs implies editing and viewing payloads. One that shows payloads implies viewing
        them.
        """
        requests = [replace(self.permission_request, edits=self.edits_input)]
        if self.edits_input:
            requests.append(replace(EDIT, workflow=self.workflow_name))
        if self.edits_input or self.sees_payloads:
            requests.append(replace(VIEW_PAYLOAD, workflow=self.workflow_name))
        return requests

    def require_activity_access(self, activities: Iterable[str]) -> None:
        """Raise ``ActionNotPermitted`` unless the access policy allows the operation for each of these activities.

        ``activities`` are their names, which are known only once the run is locked.
        """
        operations = self.permission_requests if self.by.user is not None else ()
        for name, operation in product(dict.fromkeys(activities), operations):
            access.require_access(
                self.by.user, replace(operation, activity=name), alias=self.storage.alias, run=self.row
            )

    # -- what subclasses use -------------------------------------------------------------------------------------------

    def lock_run(self) -> RunState:
        """Lock the chain in the open transaction, check that the operation is possible, and return the run.

        Waits at most ``UPDATE_LOCK_WAIT`` seconds; then ``UpdateTimeout`` (code ``busy``) is raised. If ``why_not``
        names a reason for the current run, raises ``ActionNotPossible`` or ``WorkflowClosed``. Raises
        ``WorkflowNotFound`` if the chain was deleted, and ``NestingError`` in an atomic activity of the run.
        """
        target, wait = self.target, get_settings().UPDATE_LOCK_WAIT
        inline_turn.refuse_own_run(target, f"{self.name}()", storage=self.storage)
        run = self.storage.lock_run(target.chain_id, wait=wait)
        if run is None:
            # None has two reasons: the lock was not free, or the chain was deleted since the target was read.
            if not Chain.objects.using(self.storage.alias).filter(pk=target.chain_id).exists():
                raise WorkflowNotFound(f"{self.run_label} no longer exists: somebody has deleted it")
            raise UpdateTimeout(
                f"{self.run_label} is busy: its lock was not free within {wait:g} s. Nothing was done; try again",
                code="busy",
            )
        self.require_possible(run)
        return run

    def require_possible(self, run: RunState) -> None:
        """Raise ``ActionNotPossible``, or ``WorkflowClosed``, if the operation is impossible for the run as it is now.

        ``run`` is the locked run; ``why_not`` decides. An activity or timer of an earlier run of the chain is refused,
        too.
        """
        # Read the row under the lock: the answer that a page showed may be minutes old.
        row = Instance.objects.using(self.storage.alias).get(pk=run.run_id)
        # Numbers of commands start anew in each run of a chain, so an old one could hit another activity.
        if self.seq is not None and run.run_id != self.target.selected_run_id:
            self.refuse(gettext(operator_overrides.EARLIER_RUN), closed=False)
        if reason := self.why_not(row, seq=self.seq):
            self.refuse(reason, closed=not row.is_open, already_done=self.is_done(row))

    def refuse(self, reason: Text, *, closed: bool, already_done: bool | None = None) -> NoReturn:
        """Raise ``WorkflowClosed`` with the reason if ``closed`` is True, and ``ActionNotPossible`` otherwise.

        ``already_done`` says that nothing is left to do, because the run is in the wanted state; without it,
        ``is_done`` decides by the row that the caller has read.
        """
        error = refusal_error(self.name, self.run_label, reason, closed=closed)
        error.already_done = self.is_done(self.target.row) if already_done is None else already_done
        raise error

    @property
    def run_label(self) -> str:
        return f"{self.target.workflow} {self.target.workflow_id}"


def _first_refused(user: Person, run: Instance | None, *operations: Operation) -> Operation | None:
    """Return the first refused operation. Without a run, the question is about runs in general."""
    run_operations = operations if run is None else [operation.of(run) for operation in operations]
    return next((operation for operation in run_operations if not policy().allows(user, operation)), None)


#: Runs in one statement; databases limit the number of its parameters.
_BATCH_SIZE = 500
_MAX_OPTIONS = 50


def batches(runs: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """Yield the run ids in batches that are small enough for the parameters of one statement."""
    for start in range(0, len(runs), _BATCH_SIZE):
        yield runs[start : start + _BATCH_SIZE]


class ActivityAction(OperatorRunAction[None]):
    """Base class of the operations on one activity of a run.

    ``seq`` is the number of the command that scheduled the activity.
    """

    target_kind: ClassVar[Literal["run", "activity", "timer"]] = "activity"
    selectors: ClassVar[tuple[Input, ...]] = (
        Input(name="activity", kind=str, label=_("Activity"), help=_("Only activities with this name.")),
        Input(name="cause", kind=str, label=_("Cause"), help=_("Only activities that fail with this cause.")),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        if run.backend == TEMPORAL:
            return None  # the server knows which activities are open
        tasks = ActivityTask.objects.using(run._state.db).filter(run_id=run.pk)  # noqa: SLF001 - Django documents it
        if seq is None:
            reasons = [cls.why_not_task(task) for task in tasks.defer("call", "heartbeat")]
            if all(reasons):
                return str(cls.none_possible_text())
            return None
        task = tasks.filter(seq=seq).first()
        if task is None:
            return gettext(operator_overrides.NO_SUCH_ACTIVITY)
        return cls.why_not_task(task)

    @classmethod
    def why_not_task(cls, task: ActivityTask) -> str | None:
        """Return why the operation is impossible for an activity task of an open run, or None if it is possible.

        It needs no query, so pages can call it for rows that they have read.
        """
        reason = why_not(cls.rule.task, task)
        return reason and gettext(reason)

    @classmethod
    def none_possible_text(cls) -> Any:
        """Return the text that people read if a run has no activity for which the operation is possible."""
        return _("no activity is open")

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, limit: int
    ) -> list[tuple[UUID, int | None]]:
        parts: list[tuple[UUID, int | None]] = []
        selected, cause = {**selection}, selection.get("cause")
        selected.pop("cause", None)
        faults = [] if cause is None else faults_of(cause, alias=alias)
        for batch in batches(runs):
            tasks = ActivityTask.objects.using(alias).filter(run__in=batch, **selected).order_by("-run", "seq")
            if cause is not None:
                tasks = with_faults(tasks, cause, faults)
            # Payloads are large and not needed here; the iterator keeps one chunk in memory, however many rows match.
            rows = tasks.defer("call", "options", "heartbeat", "failure").iterator(chunk_size=_BATCH_SIZE)
            possible_parts = ((task.run_id, task.seq) for task in rows if cls.why_not_task(task) is None)
            parts += islice(possible_parts, limit - len(parts))
        return parts

    @classmethod
    def selector_options(cls, runs: Sequence[UUID], *, alias: str) -> dict[str, dict[str, int]]:
        option_counts: dict[str, dict[str, int]] = {}
        for selector in cls.selectors:
            counts: Counter[str] = Counter()
            for batch in batches(runs):
                tasks = (
                    ActivityTask.objects.using(alias).filter(run__in=batch).exclude(**{selector.name: None}).order_by()
                )
                counts.update(dict(tasks.values_list(selector.name).annotate(Count("pk"))))
            option_counts[selector.name] = dict(counts.most_common(_MAX_OPTIONS))
        return option_counts

    # -- what subclasses use -------------------------------------------------------------------------------------------

    def load_task(self, run: RunState) -> TaskState:
        """Return the activity task to which this operation applies: the one with the number ``self.seq``.

        ``run`` is the locked run. Raises ``ActionNotPossible`` if the activity has ended, or if its code forbids the
        operation (``by_hand=False``). Raises ``ActionNotPermitted`` if the user may not do this to that activity.
        """
        assert self.seq is not None
        task = self.storage.find_task(run.run_id, self.seq)
        if task is None:
            self.refuse(_("the activity has ended in the meantime"), closed=False)
        self.require_activity_access([task.activity])
        if not operator_overrides.allows_overrides(task.options) and (self.edits_input or self.sees_payloads):
            self.refuse(gettext(operator_overrides.NOT_BY_HAND), closed=False)
        return task

    def find_activity(self, task: TaskState) -> Activity[Any, Any]:
        """Return the activity of a task, whose annotations say what input and what result it accepts.

        Raises ``ActionNotPossible`` if this process lacks its code.
        """
        try:
            return activity.find(task.activity)
        except ActivityNotFound:
            self.refuse(
                _("this process does not have the code of the activity, so it cannot check the value"), closed=False
            )

    def finish_task(self, result: TaskResult, run: RunState, **digests: Any) -> None:
        """Store the result of an activity, write the audit row, and notify workers after the commit.

        ``digests`` go into the details of the audit row. Raises ``ActionNotPossible`` if a worker has claimed or ended
        the activity since it was read.
        """
        # The fence of the result rejects it if a worker has claimed or finished the activity since it was loaded.
        if not self.storage.finish_tasks([result]):
            self.refuse(
                _("a worker was faster: the activity has ended in the meantime, or an attempt is running"),
                closed=False,
            )
        details = {"seq": self.seq, "activity": result.task.activity, **digests}
        self.record(self.target.audit_subject, reason=self.reason, **details)
        notify_on_commit(alias=self.storage.alias, queues=sorted({run.queue, result.task.queue}))
