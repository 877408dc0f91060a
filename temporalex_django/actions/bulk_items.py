"""What somebody is told of the runs of a bulk job."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import BulkItem, Instance

#: Of runs that are judged, and not shown.
DEFERRED_COLUMNS = ("args", "carried_messages", "snapshot", "published", "closing", "metadata", "search_attributes")
#: Codes of errors whose words may be of code or payloads of the project.
_PAYLOAD_QUOTING_CODES = frozenset(
    {
        *("payload", "update_rejected", "update_failed", "query_failed", "resume_refused", "judging_failed"),
        *("workflow_failed", "activity_failure", "child_workflow_failure"),
    }
)


def redact_items(
    items: Iterable[BulkItem],
    user: Person | None,
    *,
    alias: str,
    visible_runs: QuerySet[Instance] | None = None,
    is_admitted: Callable[[Instance], bool] | None = None,
) -> list[BulkItem]:
    """They, without the messages about runs at which he may not look: ``code`` says what became of those.

    Of a run whose payloads he does not see those that may quote some are hidden, as the words of an exception are.
    ``visible_runs`` and ``is_admitted`` are those of ``StartBulk``, as far as a face asks more than the access policy.
    One read, if there is a message; none for code (``user`` None). The items are not to be saved.
    """
    bulk_items = [*items]
    run_ids = [item.run_id for item in bulk_items if item.message]
    if user is None or not run_ids:
        return bulk_items
    allowed_runs = access.runs_for(user, alias=alias) if visible_runs is None else visible_runs
    runs = (Instance.objects.using(alias) if allowed_runs is None else allowed_runs.using(alias)).filter(pk__in=run_ids)
    can_view = is_admitted or (lambda run: access.policy().allows(user, access.VIEW.of(run)))
    can_view_any = access.policy().allows(user, access.VIEW)
    rows = runs.defer(*DEFERRED_COLUMNS) if can_view_any else ()
    redactors = {run.pk: access.redactor_for(user, run) if can_view(run) else None for run in rows}
    shows_deleted = can_view_any and (
        allowed_runs is None or access.is_unfiltered(allowed_runs)
    )  # nobody's: who sees all runs saw it, too
    for item in bulk_items:
        redactor = redactors.get(item.run_id)
        if redactor is not None:
            item.message = (
                redactor.redact_text(item.message)
                if item.code in _PAYLOAD_QUOTING_CODES and item.message
                else item.message
            )
        elif item.run_id in redactors or not shows_deleted:
            item.message = ""
    return bulk_items
