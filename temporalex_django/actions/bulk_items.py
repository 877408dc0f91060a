"""What somebody is told of the runs of a bulk job."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.db.models import QuerySet

from temporalex_django import access
from temporalex_django.authoring.authorization import Person
from temporalex_django.models import BulkItem, Instance

#: Of runs that are judged, and not shown.
UNREAD = ("args", "carried_messages", "snapshot", "published", "closing", "metadata", "search_attributes")
#: Codes of errors whose words may be of code or payloads of the project.
_QUOTING = frozenset(
    {
        *("payload", "update_rejected", "update_failed", "query_failed", "resume_refused", "judging_failed"),
        *("workflow_failed", "activity_failure", "child_workflow_failure"),
    }
)


def readable(
    items: Iterable[BulkItem],
    user: Person | None,
    *,
    alias: str,
    among: QuerySet[Instance] | None = None,
    admits: Callable[[Instance], bool] | None = None,
) -> list[BulkItem]:
    """They, without the messages about runs at which he may not look: ``code`` says what became of those.

    Of a run whose payloads he does not see those that may quote some are hidden, as the words of an exception are.
    ``among`` and ``admits`` are those of ``StartBulk``, as far as a face asks more than the access policy. One read, if
    there is a message; none for code (``user`` None). The items are not to be saved.
    """
    found = [*items]
    about = [item.run_id for item in found if item.message]
    if user is None or not about:
        return found
    there = access.runs_for(user, alias=alias) if among is None else among
    runs = (Instance.objects.using(alias) if there is None else there.using(alias)).filter(pk__in=about)
    may = admits or (lambda run: access.policy().allows(user, access.VIEW.of(run)))
    looks = access.policy().allows(user, access.VIEW)
    rows = runs.defer(*UNREAD) if looks else ()
    seen = {run.pk: access.view_of(user, run) if may(run) else None for run in rows}
    gone = looks and (there is None or access.is_every(there))  # nobody's: who sees all runs saw it, too
    for item in found:
        view = seen.get(item.run_id)
        if view is not None:
            item.message = view.redact_text(item.message) if item.code in _QUOTING and item.message else item.message
        elif item.run_id in seen or not gone:
            item.message = ""
    return found
