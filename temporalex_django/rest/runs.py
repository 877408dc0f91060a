"""The base of the view sets about runs: which runs the caller may see, how one is found, and how it is rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.contrib.contenttypes.models import ContentType
from django.db.models import Exists, OuterRef, QuerySet
from rest_framework import serializers as fields
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django import errors
from temporalex_django.access import VIEW, is_unfiltered, policy, redactor_for, runs_for, runs_or_all
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.run_columns import PAYLOAD_COLUMNS
from temporalex_django.authoring.run_filters import NEWEST_FIRST
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.core.payloads.search_attributes import to_readable
from temporalex_django.models import HumanTask, Instance
from temporalex_django.operations.base import storage
from temporalex_django.operations.human_tasks.inbox import awaited_tasks
from temporalex_django.operations.human_tasks.inbox import redact_tasks as seen_by
from temporalex_django.operations.idempotency import RunVersion, version_of
from temporalex_django.operations.read.describe import build_description, describe
from temporalex_django.operations.read.run_filters import (
    IndexOrderedQuerySet,
    annotate_attempts,
    annotate_ends,
    annotate_messages,
    annotate_switches,
    order_runs,
)
from temporalex_django.operations.read.run_summary import (
    RunStateLoader,
)
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.operator_action import Input, OperatorRunAction
from temporalex_django.present.sentences import Summary
from temporalex_django.rest import serializers
from temporalex_django.rest.base import IdempotentViewSet, etag_of, parse_if_match
from temporalex_django.rest.lists import NewestFirstPagination
from temporalex_django.rest.serializers import ReasonBody

_DEFERRED_COLUMNS = (*PAYLOAD_COLUMNS, "metadata")
_MAX_TASKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRepresentation:
    """The facts about one run from which the serializers ``InstanceOut`` and ``InstanceDetail`` build a response.

    ``description`` is redacted for the caller. ``subject`` has the ``type`` and the ``id`` of the object that the run
    was started for. ``summary`` has ``state``, ``text`` and ``trouble``.
    """

    description: Description
    run: Instance
    subject: dict[str, str] | None
    parent_run_id: UUID | None
    url: str
    summary: dict[str, Any]
    human_tasks: Sequence[HumanTask] = ()

    @property
    def search_attributes(self) -> dict[str, Any]:
        """The search attributes as JSON types; decimals are strings, because JSON numbers would lose digits."""
        return to_readable(self.run.search_attributes or {})


class RunViewSet(IdempotentViewSet):
    """Base class of the view sets of runs: it finds a run for the caller and renders it.

    ``<id>`` in an address is a run id, or a business id, which means its newest run. ``?workflow=`` selects a class if
    several have that id.
    """

    def get_queryset(self) -> QuerySet[Instance]:
        """Return the runs that the user may see; every other run gets status 404.

        A subclass may restrict them further.
        """
        alias = storage().alias
        return runs_or_all(runs_for(self._user, alias=alias), alias=alias)

    def can_access(self, run: Instance) -> bool:
        """Return True if the permission classes allow the user to call the requested method for that run."""
        # Unlike ``check_object_permissions`` this raises nothing, and leaves no denial in the audit log.
        return all(permission.has_object_permission(self.request, self, run) for permission in self.get_permissions())

    def _find_target(self, ref: str) -> RunTarget:
        """Find a run by run id or business id. Raises ``WorkflowNotFound`` and ``PermissionDenied``."""
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
            annotate_attempts(annotate_messages(annotate_switches(self._run_queryset(storage().alias))))
            .filter(pk=target.selected_run_id)
            .first()
        )
        if run is None:  # it was deleted after it was found
            raise errors.WorkflowNotFound(f"{target.workflow} {target.workflow_id} no longer exists")
        return run

    def _annotate_parents(self, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        """Annotate ``parent_there``, True if the caller may see the parent; nothing if they may see all runs."""
        visible_runs = self.get_queryset()
        # Without a restriction every parent exists, which saves a subquery for each row.
        if is_unfiltered(visible_runs):
            return runs
        return runs.annotate(parent_there=Exists(visible_runs.order_by().filter(pk=OuterRef("parent_run_id"))))

    def _run_response(
        self, target: RunTarget, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Return the run with its ``ETag``, or only its ids and URL if the caller may not look at it."""
        run = self._load_run(target)
        if not policy().allows(self._user, VIEW.of(run)):
            names = {"id": run.workflow_id, "run_id": str(run.pk), "url": self._url_for("instance", id=str(run.pk))}
            return Response(names, status=status, headers=headers)
        redactor = self._redactor(run)
        if RunStateLoader.is_untouched(run):  # it has nothing open yet, and the loader knows if a worker could take it
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
        # The summary counts seconds: a tag that covers it would change while nothing happens.
        tag = etag_of(
            version_of(run),
            {field_name: representation for field_name, representation in body.items() if field_name != "summary"},
        )
        return Response(body, status=status, headers={**(headers or {}), "ETag": tag})

    def _if_match_versions(self, request: Request) -> list[RunVersion] | None:
        """Return the versions that ``If-Match`` accepts. None: any version (no header, or ``*``)."""
        header = request.headers.get("If-Match")
        if header is None:
            return None
        return parse_if_match(header)

    def _represent_page(self, runs: QuerySet[Instance], *, order: str = NEWEST_FIRST) -> list[Any]:
        """Return the rendered runs of a page, in an order such as ``-started``. At most four reads."""
        pager = self.paginator
        assert isinstance(pager, NewestFirstPagination)
        pager.order = order
        # The page is found by ids along the index of the order; the wide rows are read for these ids alone.
        nearby_runs: Any = IndexOrderedQuerySet(pager.limit_to_page(order_runs(runs, order), self.request), order)
        positions: Sequence[Any] = self.paginate_queryset(nearby_runs) or ()
        loaded_runs = {
            run.pk: run
            for run in annotate_ends(self._run_queryset(runs.db)).filter(
                pk__in=[position["pk"] for position in positions]
            )
        }
        # The rows were read without an order, and some may have been deleted since the page was found.
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
            # A missing annotation means that the caller's runs are not restricted.
            parent_run_id=run.parent_run_id if getattr(run, "parent_there", True) else None,
            url=self._url_for("instance", id=description.run_id),
            summary={"state": summary.state, "text": text, "trouble": summary.trouble},
        )


# --- operations -------------------------------------------------------------------------------------------------------
#
# Operator actions over REST: the serializers of their bodies, and the operations that are possible on a run.


_FIELD_CLASSES: dict[type, type[fields.Field[Any, Any, Any, Any]]] = {
    int: fields.IntegerField,
    bool: fields.BooleanField,
    float: fields.FloatField,
    object: fields.JSONField,
}


def body_class_of(action: type[OperatorRunAction[Any]]) -> type[ReasonBody]:
    """Return the serializer for the body of an operation: ``reason`` and a field for each of its inputs.

    The class is named after the operation.
    """
    class_name = "".join(word.capitalize() for word in action.name.split("_"))
    # A class for each action, so that OpenAPI has a schema with a name of its own.
    return type(
        f"{class_name}Body",
        (ReasonBody,),
        {action_input.name: _build_field(action_input) for action_input in action.inputs},
    )


def _build_field(action_input: Input) -> fields.Field[Any, Any, Any, Any]:
    options: dict[str, Any] = {
        "required": action_input.required,
        "label": action_input.label,
        "help_text": action_input.help,
    }
    if action_input.choices:
        return fields.ChoiceField(choices=action_input.choices, **options)
    if action_input.kind is str:
        # Inputs may be ids and payload texts, which must stay as they are.
        return fields.CharField(trim_whitespace=False, allow_blank=True, **options)
    if action_input.kind is object:
        return fields.JSONField(allow_null=True, **options)
    return _FIELD_CLASSES[action_input.kind](**options)


def describe_operation(action: type[OperatorRunAction[Any]], run: Instance, user: Person) -> dict[str, Any]:
    """Return the fields of ``OperationOut``, by name, for an operation on a run, as this user may perform it.

    They say what the operation would do, and why it is impossible now or refused to the user.
    """
    return {
        "name": action.name,
        "of": action.target_kind,
        "effect": action.effect_text(run),
        "destructive": action.destructive,
        "why_not": _refusal_text(action, run, user) or action.refusal(run),
    }


def _refusal_text(action: type[OperatorRunAction[Any]], run: Instance, user: Person) -> str | None:
    refused_operation = action.refused_operation(user, run)
    if refused_operation is None:
        return None
    # The class cannot be started over REST at all, so there is no permission to name.
    if refused_operation.permission is None:
        return f"You cannot start {refused_operation.workflow} here: it is internal, or an old version."
    return f"This requires the permission {refused_operation.permission}."
