"""The users of the benchmarks' servers, and the runs that each of them may see."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from rest_framework.authentication import BaseAuthentication

from temporalex_django.access import AccessPolicy

HEADER = "X-Bench-User"


class Somebody(BaseAuthentication):
    """Authentication as the user whom the header names: one read per request, as with a token."""

    def authenticate(self, request: Any) -> tuple[Any, None] | None:
        name = request.headers.get(HEADER)
        return None if name is None else (get_user_model().objects.get(username=name), None)


class Tenants(AccessPolicy):
    """The policy that a user sees the runs whose ids begin with their name."""

    def narrow(self, user: Any, runs: Any) -> Any:
        return runs if user.is_superuser else runs.filter(workflow_id__startswith=f"{user.get_username()}-")
