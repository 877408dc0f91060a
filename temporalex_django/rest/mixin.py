"""Routes of a run inside your own view set: you read and operate the run under the URL of its object."""

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
from temporalex_django.rest.requests import BoundedJSONParser, problem_handler
from temporalex_django.rest.views import InstanceViewSet

if TYPE_CHECKING:
    Base = viewsets.GenericViewSet[Any]
else:
    Base = object

_MESSAGE_PATTERN = "(?P<message>[^/]+)"
#: Options of these routes alone: the other routes of the view set keep those of the project.
_ROUTE_OPTIONS: dict[str, Any] = {
    "detail": True,
    "parser_classes": (BoundedJSONParser,),
    "renderer_classes": (PlainJSONRenderer,),
    "content_negotiation_class": JSONNegotiation,
}


class WorkflowViewMixin(Base):
    """Mixin that adds the routes of runs to a view set of your own.

    Write ``class OrderViewSet(WorkflowViewMixin, viewsets.ModelViewSet)``. The routes are ``GET <order>/state/``,
    ``POST <order>/signal/<name>/``, and ``POST <order>/update/<name>/`` (GET for its outcome). Bodies, responses,
    headers and errors are those of the addresses of runs. Your view set decides first, by its ``get_queryset`` and its
    object permissions. Then the permissions of this package are checked. The other routes of your view set stay as they
    are.

    ``workflow`` is the class whose runs are meant, if an object has runs of several classes. ``run_views`` is the view
    set of runs: that of this package, or your subclass of it.
    """

    workflow: type[Workflow] | None = None
    run_views: type[InstanceViewSet] = InstanceViewSet

    def workflow_ref(self, obj: Any, runs: QuerySet[Instance]) -> str:
        """Return the run id or the business id of the run about the object ``obj``.

        By default this is the newest run that was started with ``subject=obj``. ``runs`` are the runs that the user may
        see. Raises ``WorkflowNotFound`` if there is none.
        """
        subject_run_ids = Instance.objects.using(runs.db).for_subject(obj).values("pk")
        subject_runs = runs.filter(pk__in=subject_run_ids)
        if self.workflow is not None:
            subject_runs = subject_runs.filter(workflow=self.workflow.name)
        newest_id = subject_runs.order_by("-pk").values_list("pk", flat=True).first()
        if newest_id is None:
            raise WorkflowNotFound(f"no run was started for {obj}")
        return str(newest_id)

    @action(methods=["get"], url_path="state", url_name="workflow-state", **_ROUTE_OPTIONS)
    def workflow_state(self, request: Request, **names: Any) -> Response:
        """Return the run that belongs to the object of this URL, in the form of ``GET instances/<id>/``."""
        return self._run_view_response("retrieve", request)

    @action(methods=["post"], url_path=f"signal/{_MESSAGE_PATTERN}", url_name="workflow-signal", **_ROUTE_OPTIONS)
    def workflow_signal(self, request: Request, message: str, **names: Any) -> Response:
        """Send the signal with the name ``message`` to the run that belongs to the object of this URL."""
        return self._run_view_response("signal", request, name=message)

    @action(
        methods=["get", "post"], url_path=f"update/{_MESSAGE_PATTERN}", url_name="workflow-update", **_ROUTE_OPTIONS
    )
    def workflow_update(self, request: Request, message: str, **names: Any) -> Response:
        """Send the update with the name ``message`` to the run of the object of this URL, and wait for its response.

        GET returns the response to an update that was sent before.
        """
        return self._run_view_response("outcome" if request.method == "GET" else "send_update", request, name=message)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        # Problem+json for these routes alone: the clients of the other routes expect the project's own errors.
        is_workflow_route = any(name.startswith("workflow_") for name in self.action_map.values())
        if is_workflow_route:
            return problem_handler
        return super().get_exception_handler()

    def _run_view_response(self, method: str, request: Request, **url_kwargs: str) -> Response:
        """Call ``method`` of the REST view set of runs for the run of ``workflow_ref``."""
        # Raises 404 or 403 by the rules of the project, before anything of the run is read.
        obj = self.get_object()
        run_view = self.run_views(request=request, headers={}, action=method, addresses=self._url_for)
        run_view.kwargs = {"id": self.workflow_ref(obj, run_view.get_queryset()), **url_kwargs}
        # The request is authenticated already: the inner view set checks its contract and permissions again.
        run_view.initial(request, **run_view.kwargs)
        response: Response = getattr(run_view, method)(request, **run_view.kwargs)
        finalized: Response = run_view.finalize_response(request, response)
        return finalized

    def _url_for(self, url_name: str, **arguments: str) -> str:
        """Return a URL below that of the project's object: of an update, or else of the state."""
        names = {name: value for name, value in self.kwargs.items() if name != "message"}
        if url_name == "update":
            return self.reverse_action("workflow-update", kwargs={**names, "message": arguments["name"]})
        return self.reverse_action("workflow-state", kwargs=names)
