"""Who may do what: each method of an address needs the permission of its contract, and the access policy's consent."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from temporalex_django.access import Operation, policy
from temporalex_django.actions.resume import has_step_role


class InstancePermission(BasePermission):
    """Asks the access policy, before a run is looked up and about the run.

    Refuses everybody who is not logged in, whatever the host's default is.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        operation = _requested_operation(view)
        user = request.user  # None where the host has turned UNAUTHENTICATED_USER off
        if operation is None:  # a method that the address does not have: let DRF answer 405, but only to users
            return user is not None and user.is_authenticated
        self.message = f"That takes the permission {operation.permission}."
        if user is None or not user.is_authenticated:
            return False
        return policy().allows(user, operation) or _is_step_approver(request, view, operation)

    def has_object_permission(self, request: Request, view: APIView, obj: Any) -> bool:
        requested = _requested_operation(view)
        assert requested is not None
        operation = requested.of(obj)
        self.message = f"That takes the permission {operation.permission}."
        return policy().allows(request.user, operation) or _is_step_approver(request, view, operation)


def _requested_operation(view: APIView) -> Operation | None:
    contract = getattr(view, "contract", None)
    return None if contract is None else contract.permission_request(view.kwargs.get("name"))


def _is_step_approver(request: Request, view: APIView, operation: Operation) -> bool:
    """An approver needs the role of a step alone.

    Who lacks it hears the same of runs that there are and of runs that there are not.
    """
    if operation.action != "resume":
        return False
    visible_runs = view.get_queryset()  # type: ignore[attr-defined] # of view sets
    return has_step_role(
        request.user,
        view.kwargs["id"],
        workflow=request.query_params.get("workflow") or None,
        visible_runs=visible_runs,
    )
