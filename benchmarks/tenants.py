"""Who asks the servers of the benchmarks, and whose runs there are for him."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from rest_framework.authentication import BaseAuthentication

from temporalex_django.access import AccessPolicy

HEADER = "X-Bench-User"


class Somebody(BaseAuthentication):
    """Whoever the header names: one read a request, as with a token."""

    def authenticate(self, request: Any) -> tuple[Any, None] | None:
        name = request.headers.get(HEADER)
        return None if name is None else (get_user_model().objects.get(username=name), None)


class Tenants(AccessPolicy):
    """A user sees the runs whose ids begin with his name."""

    def narrow(self, user: Any, runs: Any) -> Any:
        return runs if user.is_superuser else runs.filter(workflow_id__startswith=f"{user.get_username()}-")
