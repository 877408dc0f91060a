"""Runs among the routes of a host's own view set: what is about an object is asked and sent under its address."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet
from rest_framework import viewsets
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.authoring.workflow import Workflow
from temporalex_django.errors import WorkflowNotFound
from temporalex_django.models import Instance
from temporalex_django.rest.base import JSONNegotiation, PlainJSONRenderer
from temporalex_django.rest.parsing import BoundedJSONParser
from temporalex_django.rest.problems import problem_handler
from temporalex_django.rest.views import InstanceViewSet

if TYPE_CHECKING:
    Base = viewsets.GenericViewSet[Any]
else:
    Base = object

_MESSAGE_PATTERN = "(?P<message>[^/]+)"
#: Of our routes alone: the host's other ones are as he has them.
_ROUTE_OPTIONS: dict[str, Any] = {
    "detail": True,
    "parser_classes": (BoundedJSONParser,),
    "renderer_classes": (PlainJSONRenderer,),
    "content_negotiation_class": JSONNegotiation,
}


class WorkflowViewMixin(Base):
    """``class OrderViewSet(WorkflowViewMixin, viewsets.ModelViewSet)``: routes for the run about an order.

    ``GET <order>/state/``, ``POST <order>/signal/<name>/``, ``POST <order>/update/<name>/`` (and GET, for its outcome),
    each as the addresses of runs have it: bodies, answers, headers, errors. The view set decides first, by its
    ``get_queryset`` and its permissions about the object; then ours are asked. Its other routes stay as they are.

    ``workflow``: the class whose runs are meant, where several are about an object. ``run_views``: our view set, or the
    host's subclass of it.
    """

    workflow: type[Workflow] | None = None
    run_views: type[InstanceViewSet] = InstanceViewSet

    def workflow_ref(self, obj: Any, runs: QuerySet[Instance]) -> str:
        """Which run is meant: its run id or its business id. Unless overridden the newest that has ``obj`` as subject.

        ``runs`` are those that there are for the user. Raises ``WorkflowNotFound``.
        """
        subject_run_ids = Instance.objects.using(runs.db).for_subject(obj).values("pk")
        subject_runs = runs.filter(pk__in=subject_run_ids)
        if self.workflow is not None:
            subject_runs = subject_runs.filter(workflow=self.workflow.name)
        newest_id = subject_runs.order_by("-pk").values_list("pk", flat=True).first()
        if newest_id is None:
            raise WorkflowNotFound(f"no run was started about {obj}")
        return str(newest_id)

    @action(methods=["get"], url_path="state", url_name="workflow-state", **_ROUTE_OPTIONS)
    def workflow_state(self, request: Request, **names: Any) -> Response:
        """The run as it stands."""
        return self._run_view_response("retrieve", request)

    @action(methods=["post"], url_path=f"signal/{_MESSAGE_PATTERN}", url_name="workflow-signal", **_ROUTE_OPTIONS)
    def workflow_signal(self, request: Request, message: str, **names: Any) -> Response:
        """Send a signal to the run."""
        return self._run_view_response("signal", request, name=message)

    @action(
        methods=["get", "post"], url_path=f"update/{_MESSAGE_PATTERN}", url_name="workflow-update", **_ROUTE_OPTIONS
    )
    def workflow_update(self, request: Request, message: str, **names: Any) -> Response:
        """Send an update to the run and wait for its response, or ask for that of one that was sent before."""
        return self._run_view_response("outcome" if request.method == "GET" else "send_update", request, name=message)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        is_workflow_route = any(name.startswith("workflow_") for name in self.action_map.values())
        return problem_handler if is_workflow_route else super().get_exception_handler()

    def _run_view_response(self, method: str, request: Request, **url_kwargs: str) -> Response:
        """What our view set answers to this request about the run of the object."""
        obj = self.get_object()
        run_view = self.run_views(request=request, headers={}, action=method, addresses=self._url_for)
        run_view.kwargs = {"id": self.workflow_ref(obj, run_view.get_queryset()), **url_kwargs}
        run_view.initial(request, **run_view.kwargs)
        response: Response = getattr(run_view, method)(request, **run_view.kwargs)
        finalized: Response = run_view.finalize_response(request, response)
        return finalized

    def _url_for(self, url_name: str, **arguments: str) -> str:
        """Where a route of ours is under the host's."""
        names = {name: value for name, value in self.kwargs.items() if name != "message"}
        if url_name == "update":
            return self.reverse_action("workflow-update", kwargs={**names, "message": arguments["name"]})
        return self.reverse_action("workflow-state", kwargs=names)
