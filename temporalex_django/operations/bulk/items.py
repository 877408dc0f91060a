"""The items of a bulk job as a user may see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import BulkItem, Instance

#: Columns that are not read of runs which are only checked and not shown.
DEFERRED_COLUMNS = ("args", "carried_messages", "snapshot", "published", "closing", "metadata", "search_attributes")
#: Codes of errors whose text may come from the code or the payloads of the project.
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
    """Return the items, without the messages that this user may not see.

    The messages about runs that the user may not look at are removed; ``code`` still says what happened to those runs.
    If the user does not see the payloads of a run, messages that may quote payloads are hidden, as the text of an
    exception is. ``visible_runs`` and ``is_admitted`` are those of ``StartBulk``: they restrict the user further than
    the policy does.

    This is one read if an item has a message, and none for code (``user`` None). Do not save the items.
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
    # A deleted run belongs to nobody any more. Users who see all runs could see it too, so they keep its message.
    shows_deleted = can_view_any and (allowed_runs is None or access.is_unfiltered(allowed_runs))
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
