"""Who may do what: each view action needs one model permission of ``Instance``."""

from __future__ import annotations

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

APP = "temporalex_django"
#: By view action; ``actions/`` checks the same again.
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
        return user is not None and user.is_authenticated and user.has_perm(f"{APP}.{wanted}")
