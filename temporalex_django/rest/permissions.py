"""Who may do what: each view action needs one model permission of ``Instance``, and the access policy's consent."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from temporalex_django.access import Operation, policy
from temporalex_django.actions.resume import approves
from temporalex_django.authoring.people import APP

#: By view action; ``actions/`` checks the same again. ``resume``: or the role of a step of that run.
REQUIRED = {
    "list": "view_instance",
    "retrieve": "view_instance",
    "events": "view_instance",
    "result": "view_instance",
    "outcome": "view_instance",
    "create": "start_instance",
    "signal": "signal_instance",
    "send_update": "update_instance",
    "query": "query_instance",
    "resume": "signal_instance",
    "cancel": "cancel_instance",
    "terminate": "terminate_instance",
}
#: What the policy is asked about, by view action; all others look.
ACTIONS = {
    "create": "start",
    "signal": "signal",
    "send_update": "update",
    "query": "query",
    "resume": "resume",
    "cancel": "cancel",
    "terminate": "terminate",
}


class InstancePermission(BasePermission):
    """Asks the access policy, before a run is looked up and about the run.

    Refuses everybody who is not logged in, whatever the host's default is.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        wanted = REQUIRED.get(getattr(view, "action", None) or "")
        if wanted is None:  # a method that the address does not have: let DRF answer 405, but only to users
            return request.user is not None and request.user.is_authenticated
        self.message = f"That takes the permission {APP}.{wanted}."
        user = request.user  # None where the host has turned UNAUTHENTICATED_USER off
        if user is None or not user.is_authenticated:
            return False
        return policy().allows(user, _asked(view)) or (view.action == "resume" and _approves(request, view))  # type: ignore[attr-defined] # of view sets

    def has_object_permission(self, request: Request, view: APIView, obj: Any) -> bool:
        asked = _asked(view).of(obj)
        self.message = f"That takes the permission {asked.permission}."
        return policy().allows(request.user, asked) or (view.action == "resume" and _approves(request, view))  # type: ignore[attr-defined] # of view sets


def _asked(view: APIView) -> Operation:
    action: str = view.action  # type: ignore[attr-defined] # of view sets
    return Operation(
        action=ACTIONS.get(action, "view"), permission=f"{APP}.{REQUIRED[action]}", message=view.kwargs.get("name")
    )


def _approves(request: Request, view: APIView) -> bool:
    """An approver needs the role of a step alone.

    Who lacks it hears the same of runs that there are and of runs that there are not.
    """
    there = view.get_queryset()  # type: ignore[attr-defined] # of view sets
    return approves(request.user, view.kwargs["id"], workflow=request.query_params.get("workflow") or None, among=there)
