"""The audit of requests, beside that of operations: attempts that were refused, and payloads that people read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

from rest_framework.request import Request
from rest_framework.status import is_success
from rest_framework.views import APIView

from temporalex_django.access import redactor_for
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.base import Actor
from temporalex_django.rest.contract import Contract

if TYPE_CHECKING:
    Base = APIView
else:
    Base = ABC


class AuditedViewMixin(Base):
    """Mixin that audits requests; it comes before the view class of DRF.

    Of reads, it records those of one run by people who see its payloads.
    """

    checked_run: Instance | None = None
    #: The run whose payloads the response shows, if there is one.
    disclosed_run: Instance | None = None

    @property
    @abstractmethod
    def contract(self) -> Contract | None: ...

    @abstractmethod
    def _actor(self) -> Actor: ...

    def _redactor(self, run: Instance) -> Redactor:
        """Return the redactor for the run that the response is about, and mark its payloads as read."""
        redactor = redactor_for(self._actor().user, run)
        if redactor.shows_payloads:
            self.disclosed_run = run
        return redactor

    def check_object_permissions(self, request: Request, obj: Any) -> None:
        # Kept for ``permission_denied``, which DRF calls without the object.
        self.checked_run = obj if isinstance(obj, Instance) else None
        super().check_object_permissions(request, obj)

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn:
        if request.user is not None and self.contract is not None:
            details = {} if "id" not in self.kwargs else {"message": self.kwargs.get("name", "")}
            # No run was found: the audit keeps the text that the caller asked for.
            if self.checked_run is None:
                details["ref"] = self.kwargs.get("id", "")
            audit.record_denial(
                self._actor(), self.contract.operation, str(message or ""), run=self.checked_run, **details
            )
        super().permission_denied(request, message, code)

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        # A response with an error shows no payloads.
        if self.disclosed_run is not None and is_success(response.status_code):
            audit.record_read(self._actor(), self.disclosed_run)
        return super().finalize_response(request, response, *args, **kwargs)
