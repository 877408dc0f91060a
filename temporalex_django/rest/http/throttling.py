"""Throttling by scope.

It is off unless the project names a rate for a scope of this package in its ``DEFAULT_THROTTLE_RATES``.
"""

from __future__ import annotations

from typing import cast

from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

#: Prefix of the scopes: ``temporalex-read``, ``temporalex-start``, ``temporalex-message``, ``temporalex-act``.
SCOPE_PREFIX = "temporalex-"


class ScopeThrottle(SimpleRateThrottle):
    """Throttle that counts requests by user and scope; a scope without a rate has no limit.

    The default throttles of the project apply to its own views only.
    """

    def __init__(self) -> None:
        """Read no rate yet: the scope is known only when a view asks."""

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
