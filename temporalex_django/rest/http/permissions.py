"""The permissions and throttles of REST.

A method needs the permission of its contract, and the access policy must allow the operation.
"""

from __future__ import annotations

from typing import Any, cast

from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from temporalex_django.access import Operation, policy
from temporalex_django.operations.runs.resume import has_step_role


class InstancePermission(BasePermission):
    """Permission class of the REST views: it asks the access policy about the operation that a request performs.

    It asks first without a run, and then about the run that was found. It refuses users who are not logged in, whatever
    the settings of the project say.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        operation = _requested_operation(view)
        user = request.user  # None if the project has turned UNAUTHENTICATED_USER off
        if operation is None:  # a method that the address does not have: DRF answers 405, but only to users
            return user is not None and user.is_authenticated
        # Set before the decision, since DRF takes the message from the object after a refusal.
        self.message = f"This requires the permission {operation.permission}."
        if user is None or not user.is_authenticated:
            return False
        # A user who may do this to no run is refused before the look-up, and so learns nothing about existing runs.
        return policy().allows(user, operation) or _is_step_approver(request, view, operation)

    def has_object_permission(self, request: Request, view: APIView, obj: Any) -> bool:
        requested = _requested_operation(view)
        assert requested is not None
        operation = requested.of(obj)
        self.message = f"This requires the permission {operation.permission}."
        return policy().allows(request.user, operation) or _is_step_approver(request, view, operation)


def _requested_operation(view: APIView) -> Operation | None:
    contract = getattr(view, "contract", None)
    if contract is None:
        return None
    operation: Operation = contract.permission_request(view.kwargs.get("name"))
    return operation


def _is_step_approver(request: Request, view: APIView, operation: Operation) -> bool:
    """Return True if the request resumes a graph and the user has the role of one of its steps.

    Such a user needs no permission. The result is also False if the run does not exist, so that it does not reveal
    which runs exist.
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


#: Prefix of the scopes: ``temporalex-read``, ``temporalex-start``, ``temporalex-message``, ``temporalex-act``.
SCOPE_PREFIX = "temporalex-"


class ScopeThrottle(SimpleRateThrottle):
    """Throttle that counts the requests of a user in each scope; a scope without a rate has no limit.

    The default throttles of the project apply to its own views only.
    """

    def __init__(self) -> None:
        """Do not read a rate, as the base class does: the scope is known only when a view asks."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        contract = getattr(view, "contract", None)
        if contract is None:
            return True
        self.scope = f"{SCOPE_PREFIX}{contract.scope}"
        # DRF reads the rate of a throttle when it is created, but the scope of this one depends on the requested
        # method.
        self.rate = cast("str | None", api_settings.DEFAULT_THROTTLE_RATES.get(self.scope))
        if self.rate is None:
            return True
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return super().allow_request(request, view)

    def get_cache_key(self, request: Request, view: APIView) -> str:
        user_key = getattr(request.user, "pk", None) or self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": user_key}
