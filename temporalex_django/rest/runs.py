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
from temporalex_django.rest.etags import etag_of, parse_if_match
from temporalex_django.rest.idempotency import IdempotentViewSet
from temporalex_django.rest.pagination import NewestFirstPagination

_DEFERRED_COLUMNS = ("args", "carried_messages", "published", "closing", "snapshot", "metadata")
_MAX_TASKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRepresentation:
    """What ``InstanceOut`` shows."""

    description: Description
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


class RunViewSet(IdempotentViewSet):
    """``<id>`` is a run id or a business id (its newest run; ``?workflow=`` narrows it)."""

    def get_queryset(self) -> QuerySet[Instance]:
        """The runs that there are for the user: the others are 404. A subclass may narrow them further."""
        alias = storage().alias
        visible_runs = runs_for(self._user, alias=alias)
        return Instance.objects.using(alias) if visible_runs is None else visible_runs

    def can_access(self, run: Instance) -> bool:
        """Whether the permission classes leave the user that run, for what is asked."""
        return all(permission.has_object_permission(self.request, self, run) for permission in self.get_permissions())

    def _find_target(self, ref: str) -> RunTarget:
        """Among ``get_queryset``; then ``has_object_permission`` of the permission classes is asked."""
        target = find_run(
            ref, storage=storage(), workflow=self._text_parameter("workflow") or None, visible_runs=self.get_queryset()
        )
        self.check_object_permissions(self.request, target.row)
        return target

    def _run_queryset(self, alias: str) -> QuerySet[Instance]:
        runs = Instance.objects.using(alias).defer(*_DEFERRED_COLUMNS).select_related("chain")
        return self._annotate_parents(runs)

    def _load_run(self, target: RunTarget) -> Instance:
        run = (
            annotate_messages(annotate_switches(self._run_queryset(storage().alias)))
            .filter(pk=target.selected_run_id)
            .first()
        )
        if run is None:  # deleted since it was found
            raise errors.WorkflowNotFound(f"{target.workflow} {target.workflow_id} is gone")
        return run

    def _annotate_parents(self, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        """With ``parent_there``: the id of a parent that is not there for the caller is not told."""
        visible_runs = self.get_queryset()
        if is_unfiltered(visible_runs):
            return runs
        return runs.annotate(parent_there=Exists(visible_runs.order_by().filter(pk=OuterRef("parent_run_id"))))

    def _run_response(
        self, target: RunTarget, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """One run as it stands, with its ``ETag``. Only how it is found again, for whoever may not look at it."""
        run = self._load_run(target)
        if not policy().allows(self._user, VIEW.of(run)):
            names = {"id": run.workflow_id, "run_id": str(run.pk), "url": self._url_for("instance", id=str(run.pk))}
            return Response(names, status=status, headers=headers)
        redactor = self._redactor(run)
        if RunStateLoader.is_untouched(run):  # it has nothing open yet, and whether a worker could take it is known
            loader = RunStateLoader([run], with_details=True)
            description = build_description(run, waiting_for=loader.waiting_for(run), redactor=redactor)
        else:
            description = describe(target, storage=storage(), run=run, redactor=redactor)
            loader = RunStateLoader([run], with_details=True, has_no_tasks=not description.activities)
        summary = loader.summary(run, redactor)
        representation = replace(
            self._represent(description, run, summary, text=summary.text),
            human_tasks=seen_by(awaited_tasks(run, limit=_MAX_TASKS), self._user),
        )
        body = serializers.InstanceDetail(representation).data
        # the sentence counts the seconds: a tag of it would change while nothing happens
        tag = etag_of(
            version_of(run),
            {field_name: representation for field_name, representation in body.items() if field_name != "summary"},
        )
        return Response(body, status=status, headers={**(headers or {}), "ETag": tag})

    def _if_match_versions(self, request: Request) -> list[RunVersion] | None:
        """As what the caller saw the run, by his ``If-Match``; None: he does not say, or does not mind."""
        header = request.headers.get("If-Match")
        return None if header is None else parse_if_match(header)

    def _represent_page(self, runs: QuerySet[Instance], *, order: str = NEWEST_FIRST) -> list[Any]:
        """A page of them, rendered. Two reads, and those of their sentences: at most two."""
        pager = self.paginator
        assert isinstance(pager, NewestFirstPagination)
        pager.order = order
        nearby_runs: Any = IndexOrderedQuerySet(pager.limit_to_page(order_runs(runs, order), self.request), order)
        positions: Sequence[Any] = self.paginate_queryset(nearby_runs) or ()
        loaded_runs = {
            run.pk: run
            for run in annotate_ends(self._run_queryset(runs.db)).filter(
                pk__in=[position["pk"] for position in positions]
            )
        }
        page = pager.order_rows(loaded_runs)
        loader = RunStateLoader(page)
        representations = []
        for run in page:
            redactor = redactor_for(self._user, run)
            summary, description = (
                loader.summary(run, redactor),
                build_description(run, waiting_for=loader.waiting_for(run), redactor=redactor),
            )
            representations.append(self._represent(description, run, summary, text=summary.short_text))
        return [*serializers.InstanceOut(representations, many=True).data]

    def _represent(self, description: Description, run: Instance, summary: Summary, *, text: str) -> RunRepresentation:
        subject = None
        if run.subject_type_id is not None:
            content_type = ContentType.objects.db_manager(storage().alias).get_for_id(run.subject_type_id)
            subject = {"type": f"{content_type.app_label}.{content_type.model}", "id": str(run.subject_id)}
        return RunRepresentation(
            description=description,
            run=run,
            subject=subject,
            parent_run_id=run.parent_run_id if getattr(run, "parent_there", True) else None,
            url=self._url_for("instance", id=description.run_id),
            summary={"state": summary.state, "text": text, "trouble": summary.trouble},
        )
