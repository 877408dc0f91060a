"""Runs in a view set: which of them there are for the caller, how one is looked up, and how it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.contrib.contenttypes.models import ContentType
from django.db.models import Exists, OuterRef, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django import errors
from temporalex_django.access import VIEW, is_unfiltered, policy, redactor_for, runs_for
from temporalex_django.actions.base import storage
from temporalex_django.actions.describe import build_description, describe
from temporalex_django.actions.inbox import awaited_tasks
from temporalex_django.actions.ordering import IndexOrderedQuerySet, order_runs
from temporalex_django.actions.seeing import redact_tasks as seen_by
from temporalex_django.actions.summary import RunStateLoader, annotate_ends, annotate_messages, annotate_switches
from temporalex_django.actions.targets import RunTarget, find_run
from temporalex_django.actions.unchanged import RunVersion, version_of
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.listing import NEWEST_FIRST
from temporalex_django.core.attributes import to_readable
from temporalex_django.models import HumanTask, Instance
from temporalex_django.present.sentences import Summary
from temporalex_django.rest import serializers
from temporalex_django.rest.once import Repeatable
from temporalex_django.rest.pagination import NewestFirst
from temporalex_django.rest.tags import seen_in, tag_of

_UNREAD = ("args", "carried_messages", "published", "closing", "snapshot", "metadata")
_TASKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What ``InstanceOut`` shows."""

    described: Description
    run: Instance
    subject: dict[str, str] | None
    parent_run_id: UUID | None
    url: str
    summary: dict[str, Any]
    human_tasks: Sequence[HumanTask] = ()

    @property
    def search_attributes(self) -> dict[str, Any]:
        """Numbers with a fraction are texts: a number of JSON would change them."""
        return to_readable(self.run.search_attributes or {})


class RunViewSet(Repeatable):
    """``<id>`` is a run id or a business id (its newest run; ``?workflow=`` narrows it)."""

    def get_queryset(self) -> QuerySet[Instance]:
        """The runs that there are for the user: the others are 404. A subclass may narrow them further."""
        alias = storage().alias
        narrowed = runs_for(self._user, alias=alias)
        return Instance.objects.using(alias) if narrowed is None else narrowed

    def admits(self, run: Instance) -> bool:
        """Whether the permission classes leave the user that run, for what is asked."""
        return all(one.has_object_permission(self.request, self, run) for one in self.get_permissions())

    def _target(self, ref: str) -> RunTarget:
        """Among ``get_queryset``; then ``has_object_permission`` of the permission classes is asked."""
        target = find_run(
            ref, storage=storage(), workflow=self._text("workflow") or None, visible_runs=self.get_queryset()
        )
        self.check_object_permissions(self.request, target.row)
        return target

    def _rows(self, alias: str) -> QuerySet[Instance]:
        runs = Instance.objects.using(alias).defer(*_UNREAD).select_related("chain")
        return self._with_parents(runs)

    def _row(self, target: RunTarget) -> Instance:
        run = (
            annotate_messages(annotate_switches(self._rows(storage().alias))).filter(pk=target.selected_run_id).first()
        )
        if run is None:  # deleted since it was found
            raise errors.WorkflowNotFound(f"{target.workflow} {target.workflow_id} is gone")
        return run

    def _with_parents(self, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        """With ``parent_there``: the id of a parent that is not there for the caller is not told."""
        there = self.get_queryset()
        if is_unfiltered(there):
            return runs
        return runs.annotate(parent_there=Exists(there.order_by().filter(pk=OuterRef("parent_run_id"))))

    def _one(self, target: RunTarget, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """One run as it stands, with its ``ETag``. Only how it is found again, for whoever may not look at it."""
        run = self._row(target)
        if not policy().allows(self._user, VIEW.of(run)):
            names = {"id": run.workflow_id, "run_id": str(run.pk), "url": self._address("instance", id=str(run.pk))}
            return Response(names, status=status, headers=headers)
        view = self._view(run)
        if RunStateLoader.is_untouched(run):  # it has nothing open yet, and whether a worker could take it is known
            reading = RunStateLoader([run], with_details=True)
            what = build_description(run, waiting_for=reading.waiting_for(run), redactor=view)
        else:
            what = describe(target, storage=storage(), run=run, redactor=view)
            reading = RunStateLoader([run], with_details=True, has_no_tasks=not what.activities)
        said = reading.summary(run, view)
        shown = replace(
            self._shown(what, run, said, text=said.text),
            human_tasks=seen_by(awaited_tasks(run, limit=_TASKS), self._user),
        )
        body = serializers.InstanceDetail(shown).data
        # the sentence counts the seconds: a tag of it would change while nothing happens
        tag = tag_of(version_of(run), {name: shown for name, shown in body.items() if name != "summary"})
        return Response(body, status=status, headers={**(headers or {}), "ETag": tag})

    def _matched(self, request: Request) -> list[RunVersion] | None:
        """As what the caller saw the run, by his ``If-Match``; None: he does not say, or does not mind."""
        given = request.headers.get("If-Match")
        return None if given is None else seen_in(given)

    def _listed(self, runs: QuerySet[Instance], *, order: str = NEWEST_FIRST) -> list[Any]:
        """A page of them, rendered. Two reads, and those of their sentences: at most two."""
        pager = self.paginator
        assert isinstance(pager, NewestFirst)
        pager.order = order
        near: Any = IndexOrderedQuerySet(pager.near(order_runs(runs, order), self.request), order)
        found: Sequence[Any] = self.paginate_queryset(near) or ()
        there = {run.pk: run for run in annotate_ends(self._rows(runs.db)).filter(pk__in=[one["pk"] for one in found])}
        page = pager.keep(there)
        reading = RunStateLoader(page)
        shown = []
        for run in page:
            view = redactor_for(self._user, run)
            said, what = (
                reading.summary(run, view),
                build_description(run, waiting_for=reading.waiting_for(run), redactor=view),
            )
            shown.append(self._shown(what, run, said, text=said.short))
        return [*serializers.InstanceOut(shown, many=True).data]

    def _shown(self, what: Description, run: Instance, said: Summary, *, text: str) -> Shown:
        subject = None
        if run.subject_type_id is not None:
            kind = ContentType.objects.db_manager(storage().alias).get_for_id(run.subject_type_id)
            subject = {"type": f"{kind.app_label}.{kind.model}", "id": str(run.subject_id)}
        return Shown(
            described=what,
            run=run,
            subject=subject,
            parent_run_id=run.parent_run_id if getattr(run, "parent_there", True) else None,
            url=self._address("instance", id=what.run_id),
            summary={"state": said.state, "text": text, "trouble": said.trouble},
        )
