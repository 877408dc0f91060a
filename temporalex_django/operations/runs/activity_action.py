"""Base of the operations on one activity of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal
from uuid import UUID

from django.db.models import Count
from django.utils.translation import gettext_lazy as _

from temporalex_django.authoring import activity
from temporalex_django.authoring.activity import Activity
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.engine import operator_overrides
from temporalex_django.engine.contracts.run_storage import RunState, TaskResult, TaskState
from temporalex_django.errors import ActivityNotFound
from temporalex_django.models import ActivityTask, Instance
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction

#: Runs in one statement; databases limit the number of its parameters.
_BATCH_SIZE = 500
_MAX_OPTIONS = 50


def batches(runs: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """Split run ids into batches whose parameters fit into one statement."""
    for start in range(0, len(runs), _BATCH_SIZE):
        yield runs[start : start + _BATCH_SIZE]


class ActivityAction(OperatorRunAction[None]):
    """Base class of operations on one activity.

    ``seq`` is the number of the command that scheduled the activity.
    """

    permission: ClassVar[str] = "retry_activity"
    target_kind: ClassVar[Literal["run", "activity", "timer"]] = "activity"
    selectors: ClassVar[tuple[Input, ...]] = (
        Input(name="activity", kind=str, label=_("Activity"), help=_("Only activities of this name.")),
        Input(name="cause", kind=str, label=_("Cause"), help=_("Only activities that fail with this cause.")),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := cls.why_not_open(run):
            return reason
        tasks = ActivityTask.objects.using(run._state.db).filter(run_id=run.pk)  # noqa: SLF001 - Django documents it
        if seq is None:
            reasons = [cls.why_not_task(task) for task in tasks.defer("call", "heartbeat")]
            return str(cls.none_possible_text()) if all(reasons) else None
        task = tasks.filter(seq=seq).first()
        if task is None:
            return str(_("no activity with that number is open: it has ended, or was cancelled"))
        return cls.why_not_task(task)

    @classmethod
    def why_not_task(cls, task: ActivityTask) -> str | None:
        """Return why the operation is impossible for an activity of an open run, or None.

        It works on a row that a page has already read, and needs no query.
        """
        del task
        return None

    @classmethod
    def none_possible_text(cls) -> Any:
        """Return the reason why the operation is possible for no activity of the run."""
        return _("no activity is open")

    @classmethod
    def parts(
        cls, runs: Sequence[UUID], selection: Mapping[str, Any], *, alias: str, limit: int
    ) -> list[tuple[UUID, int | None]]:
        parts: list[tuple[UUID, int | None]] = []
        for batch in batches(runs):
            tasks = ActivityTask.objects.using(alias).filter(run__in=batch, **selection).order_by("-run", "seq")
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
        """Return the activity of a locked run.

        Raises ``ActionNotPossible`` if it has ended, or if its code forbids the operation (``by_hand=False``), and
        ``ActionNotPermitted``.
        """
        assert self.seq is not None
        task = self.storage.find_task(run.run_id, self.seq)
        if task is None:
            self.refuse(_("the activity has ended in the meantime"), closed=False)
            raise AssertionError("unreachable")
        self.require_activity_access([task.activity])
        if not operator_overrides.allows_overrides(task.options) and (self.edits_input or self.sees_payloads):
            self.refuse(_("the code of the activity does not allow this by hand (by_hand=False)"), closed=False)
        return task

    def find_activity(self, task: TaskState) -> Activity[Any, Any]:
        """Return the code of the activity, which says what input it takes and what value it returns.

        Raises ``ActionNotPossible`` if this process lacks the code.
        """
        try:
            return activity.find(task.activity)
        except ActivityNotFound:
            self.refuse(
                _("this process does not have the code of the activity, so it cannot check the value"), closed=False
            )
            raise

    def finish_task(self, result: TaskResult, run: RunState, **digests: Any) -> None:
        """Store the result of an activity, write the audit row with ``digests``, and notify workers.

        Raises ``ActionNotPossible`` if the worker of the activity was quicker.
        """
        # The fence of the result rejects it if a worker has claimed or finished the activity since it was loaded.
        if not self.storage.finish_tasks([result]):
            self.refuse(
                _("its worker was faster: the activity has ended in the meantime, or an attempt is running"),
                closed=False,
            )
        details = {"seq": self.seq, "activity": result.task.activity, **digests}
        self.record(self.target.audit_subject, reason=self.reason, **details)
        notify_on_commit(alias=self.storage.alias, queues=sorted({run.queue, result.task.queue}))
