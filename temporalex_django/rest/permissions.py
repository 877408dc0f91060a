"""Who may do what: each view action needs one model permission of ``Instance``."""

from __future__ import annotations

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from temporalex_django.actions.resume import approves

APP = "temporalex_django"
#: By view action; ``actions/`` checks the same again. ``resume``: or the role of a step of that run.
REQUIRED = {
    "list": "view_instance",
    "retrieve": "view_instance",
    "events": "view_instance",
    "result": "view_instance",
    "outcome": "view_instance",
    "create": "start_instance",
    "signal": "signal_instance",
    "send_update": "signal_instance",
    "query": "query_instance",
    "resume": "signal_instance",
    "cancel": "cancel_instance",
    "terminate": "terminate_instance",
}


class InstancePermission(BasePermission):
    """Refuses everybody who is not logged in, whatever the host's default permission classes are."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        wanted = REQUIRED.get(getattr(view, "action", None) or "")
        if wanted is None:  # a method that the address does not have: let DRF answer 405, but only to users
            return request.user is not None and request.user.is_authenticated
        self.message = f"That takes the permission {APP}.{wanted}."
        user = request.user  # None where the host has turned UNAUTHENTICATED_USER off
        if user is None or not user.is_authenticated:
            return False
        return user.has_perm(f"{APP}.{wanted}") or (view.action == "resume" and _approves(request, view))  # type: ignore[attr-defined] # of view sets


def _approves(request: Request, view: APIView) -> bool:
    """An approver needs the role of a step alone. Who lacks it hears the same of runs that there are and of runs that there are not."""
    return approves(request.user, view.kwargs["id"], workflow=request.query_params.get("workflow") or None)
