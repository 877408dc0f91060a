"""Read a run: its description, its history and its result. These functions lock nothing and write nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy
from temporalex_django.authoring import activity as activities
from temporalex_django.authoring import authorization
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.backend import MOST_ACTIVITIES, Description, EndedAttempt, FailedMessage
from temporalex_django.authoring.declared_messages import MessageKind, messages_of
from temporalex_django.authoring.redaction import UNREDACTED, Redactor
from temporalex_django.authoring.run_columns import describe_columns
from temporalex_django.backends.host import (
    Deadline,
    WaitSlot,
    await_for,
    host,
    inside_transaction,
    unlimited_wait,
    wait_for,
)
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.routing import backend_of, cluster_module, read_history
from temporalex_django.backends.tables import inline_turn
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.core.names import TABLES, check_wait
from temporalex_django.core.payloads.codec import resolve_hints
from temporalex_django.db.activity_tasks import failed_attempts, open_tasks
from temporalex_django.db.claims.limited import read_switches
from temporalex_django.db.graph_storage import instance_of
from temporalex_django.db.messages.inbox import failed_count, failed_messages
from temporalex_django.db.messages.notify import listen
from temporalex_django.db.run_reader import read_closing
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.activity_policy import open_run_text, run_result
from temporalex_django.engine.refusals import start_wait
from temporalex_django.errors import (
    ActionNotPermitted,
    HistoryGone,
    NotConfigured,
    QueryFailed,
    ResultTimeout,
    TemporalexError,
    UnknownWorkflow,
    WorkflowNotFound,
    WorkflowSwitchedOff,
)
from temporalex_django.graph import instance
from temporalex_django.graph.engine import find_declared_event
from temporalex_django.graph.projection import project
from temporalex_django.graph.steps import StepRef, class_of, external_events, human_task_spec_of, key_of, role_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import ActivityTask, Instance
from temporalex_django.models.runs import Status
from temporalex_django.operations.fleet.stats import LiveWorkers, live_workers
from temporalex_django.operations.read.run_filters import annotate_attempts
from temporalex_django.operations.run_lookup import find_chain
from temporalex_django.present.formatting import display_title, humanize_name
from temporalex_django.present.view_models import DUE_GRACE_PERIOD


def describe(
    target: RunTarget,
    *,
    storage: DjangoStorage,
    run: Instance | None = None,
    redactor: Redactor = UNREDACTED,
    with_activities: bool = True,
) -> Description:
    """Return the description of a run as it is now.

    ``redactor`` hides from the reader the payloads that they may not see. ``waiting_for`` of the description also names
    what due work needs and does not get: a live worker with its code, or a switch to be on.

    Four reads for an open run. Three more if something is due, and another one if something is switched off. Two reads
    for a closed run. One more if attempts of its activities failed. One less if its row is passed as ``run``. For an
    open run on a cluster, the cluster is asked for its activities and whether its task fails, unless
    ``with_activities`` is False.
    """
    run = run or _load_run(target, storage=storage)
    is_complete = run.is_open and with_activities
    tasks, error = _read_open_parts(run, target, storage=storage) if is_complete else ((), None)
    waiting = [*(run.waiting_for or ())]
    if run.is_open and run.status == Status.PENDING and run.starts_at is not None and run.starts_at > storage.now():
        waiting.append(start_wait(run.starts_at))
    elif run.is_open and not run.blocked:
        waiting += _unmet_needs(run, storage=storage)
    description = build_description(run, waiting_for=waiting, redactor=redactor)
    if failed_count(run):
        failures = failed_messages_of(run.chain_id, storage=storage)
        redacted_failures = [redactor.redact_failed_message(message) for message in failures]
        description = replace(description, failed_messages=redacted_failures)
    # The row of a run that a caller loaded otherwise does not say if there are any.
    if getattr(run, "attempt_count", 1):
        description = replace(description, attempts=attempts_of(run, redactor, storage=storage))
    activities = [redactor.redact_activity(task.as_open) for task in tasks]
    return replace(description, activities=activities, activities_error=error)


def _read_open_parts(
    run: Instance, target: RunTarget, *, storage: DjangoStorage
) -> tuple[Sequence[ActivityTask], str | None]:
    """Return the activities of an open run, or why they are not known. A cluster also says if its task fails."""
    tasks, error = open_tasks_or_error(target, limit=MOST_ACTIVITIES, storage=storage)
    if error is None:
        read_block(run, target, storage=storage)
    return tasks, error


def attempts_of(run: Instance, redactor: Redactor, *, storage: DjangoStorage) -> list[EndedAttempt]:
    """Return the last attempts of a run's activities that failed, without what ``redactor`` hides. One read."""
    attempts = failed_attempts(run.pk, alias=storage.alias, limit=MOST_ACTIVITIES)
    if redactor.shows_error_text:
        return attempts
    return [replace(attempt, message="", traceback=None) for attempt in attempts]


def unsaid_attempts(
    run: Instance, redactor: Redactor, *, failing: Iterable[Mapping[str, Any]], storage: DjangoStorage
) -> Sequence[EndedAttempt]:
    """Return the attempts that failed, unless a page shows them already; the row has ``attempt_count``.

    A page shows the last attempt of each activity in ``failing`` that has a ``failure``, and of the activity with which
    a run failed.
    """
    closing = run.closing_value if run.status == Status.FAILED else None
    said_count = sum(row["failure"] is not None for row in failing)
    if isinstance(closing, dict) and closing.get("attempts"):
        said_count += 1
    return attempts_of(run, redactor, storage=storage) if getattr(run, "attempt_count", 0) > said_count else ()


def _unmet_needs(run: Instance, *, storage: DjangoStorage) -> list[str]:
    """Return phrases about what due work waits for: a worker with the code, or a switch."""
    now, parameters = storage.sql.now_expression(storage.clock)
    # One statement for everything that can be due, with the database's time: the clock of this process may differ.
    rows = storage.sql.select(
        "select c.due_at,"  # noqa: S608
        " (select min(m.created_at) from temporalex_message m where m.chain_id = c.id and not m.settled and m.fresh),"
        " exists (select 1 from temporalex_activity_task t where t.run_id = c.run_id and t.owner is null),"
        f" {now} from temporalex_chain c where c.id = %s",
        [*parameters, run.chain_id],
        ("timestamptz", "timestamptz", "bool", "timestamptz"),
    )
    needs: list[str] = []
    for due_at, unread_since, has_queued_tasks, at in rows:
        due_moments = [moment for moment in (due_at, unread_since) if moment is not None and moment <= at]
        # Nothing is due, so no worker can be missing; this saves the reads below for most runs.
        if not due_moments and not has_queued_tasks:
            continue
        workers = live_workers(alias=storage.alias)
        if not run.paused:
            missing_worker = workers.missing_if_overdue(run, since=min(due_moments, default=None), now=at)
            needs += filter(None, [missing_worker])
        needs += _missing_code(run, workers, due_before=at - DUE_GRACE_PERIOD, storage=storage)
        needs += _switched_off_names(run, storage=storage)
    return needs


def failed_messages_of(chain: UUID, *, storage: DjangoStorage) -> list[FailedMessage]:
    """Return the signals of a chain whose handler failed, oldest first, at most ``MOST_ACTIVITIES``. One read."""
    rows = failed_messages(chain, alias=storage.alias).only("request_id", "name", "outcome", "answered_at")
    return [
        FailedMessage(id=str(row.request_id), name=row.name, failed_at=row.answered_at, **row.failure)
        for row in rows[:MOST_ACTIVITIES]
    ]


def _missing_code(run: Instance, workers: LiveWorkers, *, due_before: datetime, storage: DjangoStorage) -> list[str]:
    """Return phrases about code or keys that no live worker has. An activity with ``waits_for`` need not be due."""
    rows = storage.sql.select(
        "select distinct activity, queue, waits_for from temporalex_activity_task where run_id = %s and owner is null"
        " and (due_at <= %s or waits_for is not null) order by 1, 2, 3",
        [run.pk, due_before],
        ("text", "text", "text"),
    )
    needs = [
        waits_for or f"the activity {name}"
        for name, queue, waits_for in rows
        if waits_for or not workers.can_run_activity(name, queue=queue)
    ]
    return [f"a worker with {need}" for need in dict.fromkeys(needs)]


def _switched_off_names(run: Instance, *, storage: DjangoStorage) -> list[str]:
    switches = read_switches(storage.sql, storage.clock)
    if not (switches.queues or switches.activities or switches.workflows or switches.holds):
        return []
    rows = storage.sql.select(
        "select distinct activity, queue from temporalex_activity_task where run_id = %s and owner is null order by 1, 2",
        [run.pk],
        ("text", "text"),
    )
    switched_names = []
    if run.workflow in switches.workflows:
        switched_names = [f"the class {run.workflow}"]
    switched_names += [
        f"the queue {queue}" for queue in (run.queue, *(queue for _, queue in rows)) if queue in switches.queues
    ]
    switched_names += [f"the activity {name}" for name, _ in rows if name in switches.activities]
    hold_texts = [
        f"the hold of the queue {queue} to end at {switches.holds[queue, ''].isoformat(timespec='seconds')}"
        for _, queue in rows
        if queue in switches.held_queues
    ]
    return [*(f"{name} to be switched on" for name in dict.fromkeys(switched_names)), *dict.fromkeys(hold_texts)]


def build_description(
    run: Instance, *, waiting_for: Iterable[str] | None = None, redactor: Redactor = UNREDACTED
) -> Description:
    """Return the description of a run from its row; nothing is read.

    ``redactor`` hides the payloads that the reader may not see. ``waiting_for`` replaces what the row says. For a
    blocked run it is extended by the worker that the run needs, or by the switch of its class. Activities and failed
    messages are left empty.
    """
    waiting = list((run.waiting_for or []) if waiting_for is None else waiting_for)
    if run.blocked and (missing_worker := run.blocked.get("waits_for")):
        waiting.append(f"a worker with {missing_worker}")
    if run.blocked and run.blocked.get("code") == WorkflowSwitchedOff.code:
        waiting.append(f"the class {run.workflow} to be switched on")
    return Description(
        **describe_columns(partial(getattr, run), redactor),
        waiting_for=redactor.redact_waiting_for(waiting, run.waits),
    )


def _load_run(target: RunTarget, *, storage: DjangoStorage) -> Instance:
    runs = annotate_attempts(Instance.objects.using(storage.alias))
    runs = runs.defer("args", "carried_messages", "published", "closing")
    run = (runs.filter(pk=target.pinned) if target.pinned else runs.filter(pk=target.run_id)).first()
    if run is None:
        raise WorkflowNotFound(f"{target.workflow} {target.workflow_id} no longer exists")
    return run


def load_history(target: RunTarget, *, storage: DjangoStorage, redactor: Redactor = UNREDACTED) -> list[HistoryEvent]:
    """Return the events of a run's history, oldest first, redacted by ``redactor``.

    The run is the one that the caller found by its run id, or else the current run of the chain.
    """
    return [redactor.redact_event(event) for event in read_history(target, storage=storage)]


#: Seconds between two looks at the row of a run on a cluster, for a caller that is notified of its end.
_CLUSTER_PAUSE = 1.0


class ResultWaiter:
    """A wait for the result of a chain, across continue-as-new, for at most ``timeout`` seconds (None waits for ever).

    No transaction is open during the wait. Inside a caller's transaction it looks once and does not wait. ``wait_slot``
    limits how many callers wait at a time.

    ``get`` and ``aget`` return the result. They raise ``WorkflowFailed`` or a subclass, ``WorkflowCancelled``, and
    ``ResultTimeout`` while the chain is open. The result and the errors are redacted by ``redactor``.
    """

    def __init__(
        self,
        target: RunTarget,
        *,
        timeout: float | None,
        storage: DjangoStorage,
        wait_slot: WaitSlot = unlimited_wait,
        redactor: Redactor = UNREDACTED,
    ) -> None:
        self.target = target
        self.redactor = redactor
        self.wait_slot = wait_slot
        self.storage = storage
        self.deadline = Deadline(check_wait(timeout))

    def get(self) -> Any:
        # Inside a transaction a worker cannot see what the caller wrote, so a wait could only time out.
        if inside_transaction(self.storage.alias):
            return self.resolve(self.poll())
        listener = partial(listen, self.target.chain_id, alias=self.storage.alias)
        # Each poll for a run on a cluster is a read that the database is to be spared.
        pause = None if backend_of(self.target) is None else _CLUSTER_PAUSE
        outcome = wait_for(self.poll, self.deadline, wait_slot=self.wait_slot, listen=listener, listening_pause=pause)
        return self.resolve(outcome)

    async def aget(self) -> Any:
        outcome = await await_for(self.poll, self.deadline)
        return await sync_to_async(self.resolve)(outcome)

    def poll(self) -> tuple[str, Any] | None:
        """Return ``(status of the last run, attributes of its closing event)``; None while the chain is open.

        One read.
        """
        if (remote := backend_of(self.target)) is not None:
            return remote.closing(self.target, storage=self.storage)
        return read_closing(self.target.chain_id, session=self.storage)

    def resolve(self, outcome: tuple[str, Any] | None) -> Any:
        """Return the result of the chain, or raise its error; ``outcome`` is the pair that ``poll`` returned.

        If ``outcome`` is None, the chain is open: raises ``ResultTimeout`` with a text that says what the run waits
        for.
        """
        target = self.target
        if outcome is not None:
            status, closing = outcome
            attributes = closing if self.redactor is UNREDACTED else self.redactor.redact_attributes(closing or {})
            return run_result(status, attributes, workflow=target.workflow, workflow_id=target.workflow_id)
        chain = find_chain(target.chain_id, storage=self.storage)
        description = describe(chain, storage=self.storage, redactor=self.redactor)
        reason = open_run_text(description)
        if not description.blocked and not description.paused:
            reason += self._missing_worker(chain, description)
        if inside_transaction(self.storage.alias):
            reason += (
                ". Inside atomic() this call checks once and does not wait: what this transaction started or "
                "sent is processed only after it commits. Ask for the result after that, for example in "
                "transaction.on_commit()"
            )
        raise ResultTimeout(f"{target.workflow} {target.workflow_id} has no result yet: it is {reason}")

    def _missing_worker(self, chain: RunTarget, description: Description) -> str:
        """Return the end of a sentence, or ""."""
        queued = [activity for activity in description.activities if activity.owner is None]
        # A run that waits for a message or a time needs none, and one that is due for long has it in `waiting_for`.
        if (description.status != Status.PENDING and not queued) or any(
            "a worker" in w for w in description.waiting_for
        ):
            return ""
        workers = live_workers(alias=self.storage.alias)
        missing = None
        if description.status == Status.PENDING and not description.waiting_for:
            missing = workers.missing_worker(workflow=chain.workflow, version=chain.version, queue=chain.queue)
        for activity in queued:
            if missing is None and not workers.can_run_activity(activity.activity, queue=activity.queue):
                missing = f"a worker with the activity {activity.activity} for the queue {activity.queue!r}"
        return "" if missing is None else f"; it needs {missing}: start one: manage.py temporalex worker"


def selected_version(target: RunTarget, *, storage: DjangoStorage) -> int:
    """Return the version of the workflow class of ``target.selected_run_id``.

    An older run of a chain may have another version than the current one. A read is needed only for such a run.
    """
    if target.selected_run_id == target.run_id:
        return target.version
    return _load_run(target, storage=storage).version


def load_instance(target: RunTarget, *, storage: DjangoStorage, redactor: Redactor = UNREDACTED) -> Any:
    """Return the state of a graph's run as a ``graph.instance.Instance``, rebuilt from its history.

    ``redactor`` hides the payloads that the reader may not see; it is applied to the state. Raises ``UnknownWorkflow``
    if this process has no graph of that name and version.
    """
    code = host().find_class(target.chain_id, target.workflow, selected_version(target, storage=storage))
    # Rebuilding a graph may run code of the project, so the crash marker names the run (see decision 22).
    with inline_turn.crash_marker(storage).record_work("run", target.selected_run_id):
        events = history_of(target, storage=storage)
        graph_instance = instance_of(target.selected_run_id, code) if events is None else project(code, events)
    if redactor is UNREDACTED:
        return graph_instance
    return instance.redact_instance(graph_instance, redactor)


def run_ids(target: RunTarget, *, storage: DjangoStorage) -> list[UUID]:
    """Return the run ids of all runs of the chain that ``target`` names, oldest first. One read."""
    runs = Instance.objects.using(storage.alias).filter(chain_id=target.chain_id).order_by("pk")
    return list(runs.values_list("pk", flat=True))


# --- available messages -----------------------------------------------------------------------------------------------
#
# The messages that a run accepts now, the type of each payload, and the reason why a user may not send one.


_PERMISSIONS = {"signal": "signal_instance", "update": "update_instance", "resume": "signal_instance"}
_SIGNAL_PREFIX = "signal "
_MAX_MESSAGES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableMessage:
    """A message that can be sent to a run now: a signal, an update, or an event that a step of a graph waits for.

    - ``kind``: "resume" for an event, with the key of the waiting step in ``step``.
    - ``args_type``: the annotation of the payload; Any if this process lacks the code or the code has no annotation.
    - ``answer_type``: the type of the answers to an update, likewise.
    - ``permission``: the permission that the declaration of the message requires, or None.
    - ``role``: the role of the step, which the sender must have, or None.
    - ``is_decision``: True for an event of a step that asks people to decide, such as ``Approval``.
    - ``about``: the description of the message in the code, or empty.
    """

    kind: Literal["signal", "update", "resume"]
    name: str
    step: str | None = None
    args_type: Any = Any
    answer_type: Any = Any
    permission: str | None = None
    role: str | None = None
    is_decision: bool = False
    about: str = ""

    def why_not(self, user: Person, run: Instance) -> str | None:
        """Return the sentence that says why this user may not send the message to the run, or None if they may.

        It asks the access policy; nothing else is read.
        """
        permission = f"{APP}.{_PERMISSIONS[self.kind]}"
        operation = Operation(action=self.kind, permission=permission, message=self.name).of(run)
        if self.role is not None and not _has_role(user, self.role):
            return _("Only %(role)s may decide this.") % {"role": self.role}
        if self.kind == "resume" and self.permission is not None:
            is_permitted = policy().permits(user, self.permission)
            if is_permitted:
                return None
            return _("You may not send it: this requires the permission %(wanted)s.") % {"wanted": self.permission}
        # The role of a step is the only requirement; people who have it need no permission to signal runs.
        if self.role is not None:
            return None
        if not policy().allows(user, operation):
            return _("You may not send it: this requires the permission %(wanted)s.") % {"wanted": permission}
        if self.permission is not None and not policy().permits(user, self.permission):
            return _("You may not send it: this requires the permission %(wanted)s.") % {"wanted": self.permission}
        return None


def available_messages(run: Instance) -> list[AvailableMessage]:
    """Return the messages that a run accepts now, updates first; an empty list for a closed run.

    There are at most 50. They come from the row of the run; nothing else is read.
    """
    if not run.is_open:
        return []
    code = _workflow_class(run)
    declarations = messages_of(code) if code is not None else {}
    # A dict keeps the order and drops a signal that is both accepted by a phase and waited for.
    names: dict[tuple[MessageKind, str], None] = {}
    for kind, accepts_key in (("update", "updates"), ("signal", "signals")):
        names |= dict.fromkeys((kind, str(name)) for name in (run.accepts or {}).get(accepts_key) or ())  # type: ignore[misc]
    waits = [str(wait) for wait in run.waiting_for or ()]
    names |= dict.fromkeys(
        ("signal", wait.removeprefix(_SIGNAL_PREFIX)) for wait in waits if wait.startswith(_SIGNAL_PREFIX)
    )
    messages = []
    for kind, name in names:
        declaration = declarations.get((kind, name))
        if declaration is None:
            messages.append(AvailableMessage(kind=kind, name=name))
        else:
            messages.append(
                AvailableMessage(
                    kind=kind,
                    name=name,
                    args_type=declaration.args_type,
                    answer_type=declaration.answer_type,
                    permission=declaration.permission,
                    about=declaration.about,
                )
            )
    if code is not None and issubclass(code, GraphWorkflow):
        messages += _step_events(run, code)
    return messages[:_MAX_MESSAGES]


def _step_events(run: Instance, code: type[GraphWorkflow]) -> list[AvailableMessage]:
    """Return the events from outside that waiting steps accept. Timers fire by themselves, so theirs are left out."""
    published = run.published_state
    waiting = None
    if isinstance(published, dict):
        waiting = published.get("waiting")
    keys = {str(key) for key in waiting or ()}
    messages = []
    for step in code.graph() if keys else ():
        if key_of(step) not in keys:
            continue
        for event in external_events(step):
            declaration = find_declared_event(step, event)
            message = AvailableMessage(
                kind="resume",
                name=event,
                step=key_of(step),
                role=role_of(step),
                is_decision=human_task_spec_of(step) is not None,
            )
            if declaration is not None:
                message = replace(message, args_type=declaration.data_type, permission=declaration.permission)
            messages.append(message)
    return messages


def _workflow_class(run: Instance) -> Any:
    try:
        return workflows.class_for_run(run.workflow, run.version)
    except UnknownWorkflow:
        return None


def _has_role(user: Person, role: str) -> bool:
    try:
        return authorization.has_role(user, role)
    except ActionNotPermitted:
        return False


def available_queries(run: Instance) -> dict[str, Any]:
    """Return the queries that the class of a run answers, by name, each with the annotation of its argument.

    The annotation is None for a query without an argument. The dict is empty if this process lacks the class.
    """
    code = _workflow_class(run)
    queries = {} if code is None else code._queries  # noqa: SLF001 - of our own class
    return {name: _argument_type(fn) for name, fn in queries.items()}


def _argument_type(fn: Any) -> Any:
    parameters = [*inspect.signature(fn).parameters]
    if len(parameters) > 1:
        return resolve_hints(fn).get(parameters[1], Any)
    return None


# --- display names ----------------------------------------------------------------------------------------------------
#
# The titles by which people read the names of workflows, activities, steps and waits.
#
# A title is the one that the code declares, or the first line of the docstring, or the name as words.


_OWN_PACKAGE = __name__.partition(".")[0]


def class_or_none(workflow: str, version: int) -> Any:
    """Return the workflow class of that name and version, or None if this process does not have it."""
    try:
        return workflows.class_for_run(workflow, version)
    except TemporalexError:
        return None


def workflow_title(workflow: str, version: int | None = None) -> str:
    """Return the title of a workflow class.

    It is derived from the name alone if this process does not have the class.
    """
    workflow_class = workflows.find_or_none(workflow) if version is None else class_or_none(workflow, version)
    if workflow_class is None:
        return display_title(None, None, workflow)
    return display_title(getattr(workflow_class, "title", None), vars(workflow_class).get("__doc__"), workflow)


def workflow_noun(workflow: str, version: int | None = None) -> str:
    """Return the name under which sentences mention a workflow class: its declared title, or its name in words.

    A docstring is a sentence of its own, so it is no name.
    """
    workflow_class = workflows.find_or_none(workflow) if version is None else class_or_none(workflow, version)
    return display_title(getattr(workflow_class, "title", None), None, workflow)


def activity_noun(name: str) -> str:
    """Return the name under which sentences mention an activity: its label, or its name in words."""
    definition = activities.registry.get(name)
    if definition is None:
        return display_title(None, None, name)
    step = getattr(definition, "step_class", None)
    if step is not None:
        return display_title(step.label, None, step.__name__)
    return display_title(definition.label, None, name)


def activity_title(name: str) -> str:
    """Return the title of an activity; for an activity that runs a step of a graph, the title of the step's class."""
    definition = activities.registry.get(name)
    if definition is None:
        return display_title(None, None, name)
    # Steps of graphs run as activities whose function is our own, so its docstring would be the wrong title.
    step = getattr(definition, "step_class", None)
    if step is not None:
        return display_title(step.label, vars(step).get("__doc__"), step.__name__)
    return display_title(definition.label, definition.__wrapped__.__doc__, name)


def step_title(code: Any, key: str) -> str:
    """Return the title of the step with that key in the graph class ``code``.

    It is derived from the key if ``code`` is no graph class or has no such step.
    """
    if isinstance(code, type) and issubclass(code, GraphWorkflow):
        for step in code.graph():
            if key_of(step) == key:
                return title_of_step(step)
    return display_title(None, None, key)


def title_of_step(step: StepRef) -> str:
    """Return the title of a step of a graph."""
    cls = class_of(step)
    is_own = cls.__module__.partition(".")[0] == _OWN_PACKAGE
    documentation = None if is_own else vars(cls).get("__doc__")
    return display_title(step.label or documentation, None, key_of(step))


def wait_title(wait: Mapping[str, Any], code: Any, redactor: Redactor) -> str:
    """Return the title under which people read a wait; ``wait`` is an entry of the column ``waits`` of a run.

    ``code`` is the class of the run, or None. ``redactor`` hides a title that may quote payloads.
    """
    match wait.get("kind"):
        case "step":
            return step_title(code, str(wait.get("name")))
        case "child":
            return workflow_title(str(wait.get("name")))
        # The title of a human task may quote payloads.
        case "human_task" if not redactor.shows_error_text:
            return _("the human task %(key)s") % {"key": wait.get("name")}
        case _:
            return str(wait.get("label") or "")


def wait_noun(wait: Mapping[str, Any], code: Any) -> str:
    """Return the name under which sentences mention a wait, if its title may be a docstring, or else an empty text.

    ``wait`` is an entry of the column ``waits`` of a run; ``code`` is the class of the run, or None.
    """
    match wait.get("kind"):
        case "step":
            key = str(wait.get("name"))
            return display_title(_step_label(code, key), None, key)
        case "child":
            return workflow_noun(str(wait.get("name")))
        case _:
            return ""


def _step_label(code: Any, key: str) -> object:
    if isinstance(code, type) and issubclass(code, GraphWorkflow):
        return next((step.label for step in code.graph() if key_of(step) == key), None)
    return None


def awaits_event(wait: Mapping[str, Any], code: Any) -> bool:
    """Return True if a wait is that of a step which asks nobody to decide: it waits for an event, which can be sent.

    ``wait`` is an entry of the column ``waits`` of a run; ``code`` is the class of the run, or None.
    """
    if wait.get("kind") != "step" or not (isinstance(code, type) and issubclass(code, GraphWorkflow)):
        return False
    return any(key_of(step) == wait.get("name") and human_task_spec_of(step) is None for step in code.graph())


def wait_messages(wait: Mapping[str, Any], accepts: Mapping[str, Any]) -> list[str]:
    """Return the names, as people read them, of the messages that end a wait of a run.

    ``wait`` is an entry of the column ``waits`` of the run. ``accepts`` is its column ``accepts``: the lists of updates
    and signals that the open phase of the run takes.
    """
    match wait.get("kind"):
        case "phase":
            labels = wait.get("labels") or {}
            names = [*(accepts.get("updates") or ()), *(accepts.get("signals") or ())]
            return [labels.get(name) or humanize_name(name) for name in names]
        case "signal":
            return [humanize_name(str(wait.get("name")))]
        case "step" | "human_task":
            return [humanize_name(str(event)) for event in wait.get("events") or ()]
        case _:
            return []


# --- cluster reads ----------------------------------------------------------------------------------------------------
#
# Reads of a run on a cluster that only the cluster can answer: for pages, which must not wait for it for long.


T = TypeVar("T")

#: Seconds in which a worker has to tell the history of a run to a page.
HISTORY_SECONDS: Final = 2.0
#: Most open activities that a page counts.
MAX_TASKS: Final = 1000


def open_tasks_or_error(
    target: RunTarget, *, limit: int = MAX_TASKS, storage: DjangoStorage
) -> tuple[Sequence[ActivityTask], str | None]:
    """Return ``(open activities of a run, None)``, or no activities and a sentence that says why they are not known."""
    if (remote := backend_of(target)) is not None:
        return _or_error(lambda: remote.open_tasks(target, limit=limit, storage=storage))
    return open_tasks(target.selected_run_id, limit=limit, alias=storage.alias), None


def read_block(run: Instance, target: RunTarget, *, storage: DjangoStorage) -> None:
    """Set ``run.blocked`` to what the cluster says about an open run whose task fails and whose row does not say so.

    A worker marks the row when it fails a task. It does not if it was stopped, or if the server failed the task. The
    row is not written. A cluster that does not answer changes nothing.
    """
    if target.backend == TABLES or run.blocked or not run.is_open or run.paused:
        return
    with suppress(TemporalexError, ImportError):
        run.blocked = cluster_module("reads").block(target, storage=storage)


def history_or_error(target: RunTarget, *, storage: DjangoStorage) -> tuple[Sequence[HistoryEvent], str | None]:
    """Return ``(events of a run, None)``, or no events and a sentence that says why they are not known."""
    if target.paused:
        return (), _("The run is paused. A Temporal cluster does not pass queries on to a paused run.")
    return _or_error(lambda: read_history(target, storage=storage, timeout=HISTORY_SECONDS))


def _or_error(read: Callable[[], Sequence[T]]) -> tuple[Sequence[T], str | None]:
    try:
        return read(), None
    except NotConfigured as exc:
        return (), exc.message
    except HistoryGone:
        return (), _("The Temporal cluster has deleted this run, and its history with it. The rows here are kept.")
    except QueryFailed:
        return (), _("No worker has answered in time. Only a worker with the code of the run can answer.")
    except TemporalexError:
        # The text of the error is for operators: it names the server.
        return (), _("The Temporal cluster has not answered in time.")


def history_of(target: RunTarget, *, storage: DjangoStorage) -> Sequence[HistoryEvent] | None:
    """Return the events of a run on a cluster, or None for a run whose events are rows. Raises ``QueryFailed``."""
    if target.backend == TABLES:
        return None
    return read_history(target, storage=storage)
