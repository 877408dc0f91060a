"""Have no worker take anything of a queue, an activity or a workflow class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from temporalex_django.actions import audit
from temporalex_django.actions.base import CODE, Action, Actor, Subject
from temporalex_django.authoring import activity
from temporalex_django.authoring import workflow as workflows
from temporalex_django.conf import queue_limits
from temporalex_django.core.names import quoted
from temporalex_django.core.payloads import check_text
from temporalex_django.db import background_tasks
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.errors import ActionNotPossible
from temporalex_django.models import ActivityTask, SwitchedOff, Worker

_NAMED = 10
#: Tables with what waits for a worker, each with the condition of its index.
_WAITING = (
    ("chains", "temporalex_chain", "due_at is not null"),
    ("tasks", "temporalex_activity_task", "owner is null and not atomic and line is null"),
    ("lines", "temporalex_activity_task", "owner is null and not atomic and line is not null"),
)


class SwitchOff(Action[SwitchedOff]):
    """Workers hear of it within a second; what is under way goes on to its end. Gives the row of the switch.

    Of a queue no runs and no activities are taken; an activity waits, the others of its queue go on; runs of a workflow
    class stop where they stand, and refuse updates. Whatever comes meanwhile waits. Raises ``ActionNotPossible`` for
    what is off already, for names that neither this process nor a worker knows, and for an atomic activity. One row,
    in the caller's transaction. Audited.
    """

    name: ClassVar[str] = "switch_off"
    permission: ClassVar[str] = "use_switches"
    forced: ClassVar[bool] = True

    def __init__(self, kind: str, thing: str, *, reason: str = "", by: Actor = CODE) -> None:
        super().__init__(by=by)
        if kind not in SwitchedOff.Switchable.values:
            raise ActionNotPossible(
                f"there is no switch for {quoted(kind)}: there are {', '.join(SwitchedOff.Switchable.values)}"
            )
        self.kind = kind
        self.thing = check_text(thing, label=f"the name of the {kind}")
        self.reason = check_text(reason, label="the reason")

    def perform(self) -> SwitchedOff:
        alias = self.storage.alias
        known = known_names(self.kind, alias=alias)
        if self.thing not in known and not self._is_enqueued():
            some = f": there are {', '.join(sorted(known)[:_NAMED])}" if known else ""
            raise ActionNotPossible(
                f"neither this process nor a worker knows the {self.kind} {quoted(self.thing)}{some}"
            )
        here = activity.registry.get(self.thing) if self.kind == SwitchedOff.Switchable.ACTIVITY else None
        if here is not None and here.options_set.atomic:
            raise ActionNotPossible(
                f"{self.thing} is atomic: the turns of its runs run it, and no worker takes it; switch the classes off that call it"
            )
        with self.storage.transaction():
            row, made = SwitchedOff.objects.using(alias).get_or_create(
                kind=self.kind,
                name=self.thing,
                defaults={
                    "since": self.storage.now(),
                    "by": audit.of_actor(self.by)["actor_name"],
                    "reason": self.reason,
                },
            )
            if not made:
                raise ActionNotPossible(f"the {self.kind} {self.thing} is switched off already")
            self.tell_of(self.reason)
        return row

    def _is_enqueued(self) -> bool:
        """Whether it is a Django task that waits: a process knows it when it has run or enqueued it."""
        waiting = ActivityTask.objects.using(self.storage.alias).filter(chain=None, activity=self.thing)
        return self.kind == SwitchedOff.Switchable.ACTIVITY and waiting.exists()

    def tell_of(self, reason: str) -> None:
        """Audit it."""
        workflow = self.thing if self.kind == SwitchedOff.Switchable.WORKFLOW else ""
        subject = Subject(run_id=None, workflow=workflow, workflow_id="")
        self.tell(subject, reason=reason, kind=self.kind, name=self.thing)


def waiting_queues(*, alias: str) -> list[str]:
    """Queues in which runs or activities wait, by name. One read, which looks at an index once for each queue."""
    sql = DjangoStorage(alias).sql
    return [name for (name,) in sql.select(" union ".join(_each_queue(*source) for source in _WAITING), [], ("text",))]


def _each_queue(name: str, table: str, where: str) -> str:
    first = f"select min(queue) from {table} where {where}"  # noqa: S608 - constants
    return (
        f"select queue from (with recursive {name}(queue) as ({first} union all"  # noqa: S608
        f" select ({first} and queue > {name}.queue) from {name} where {name}.queue is not null)"
        f" select queue from {name}) {name}_all where queue is not null"
    )


def known_names(kind: str, *, alias: str) -> set[str]:
    """Names that this process has, and live workers; of queues also the ones in which something waits."""
    rows = [*Worker.objects.using(alias).filter(buried_at=None)]
    found: Iterable[str]
    if kind == SwitchedOff.Switchable.WORKFLOW:
        found = [*workflows.registry, *(name for row in rows for name in row.workflows)]
    elif kind == SwitchedOff.Switchable.ACTIVITY:
        found = [*activity.registry, *(name for row in rows for name in row.activity_names)]
    else:
        classes = (cls.task_queue for cls in workflows.concrete_classes())
        own = (one.options_set.queue or "default" for one in activity.registry.values())
        tasks = background_tasks.backend_queues() or ()
        found = [*classes, *own, *tasks, *queue_limits(), *(name for row in rows for name in row.queues)]
        found += waiting_queues(alias=alias)
    return set(found)
