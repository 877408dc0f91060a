"""The base class of all view sets: JSON in and out, the errors of this package, and little of the project's own.

Two settings of the project count: its authentication, and the throttle rates that it gives to the scopes of this
package. Its throttles, filters, pagination, versioning, renderers and exception handler apply to its own views only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlencode

from django.http import HttpRequest
from rest_framework import viewsets
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.status import is_success
from rest_framework.views import APIView

from temporalex_django.access import redactor_for
from temporalex_django.authoring.authorization import Person, sender_key
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.contrib.request_id import request_id
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.audit import client_address
from temporalex_django.operations.base import Actor
from temporalex_django.rest import serializers
from temporalex_django.rest.contract import IDEMPOTENCY_KEY, Contract, reject_unknown
from temporalex_django.rest.lists import DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS, NewestFirstPagination
from temporalex_django.rest.requests import BoundedJSONParser, InstancePermission, ScopeThrottle, problem_handler

if TYPE_CHECKING:
    Base = APIView
else:
    Base = ABC


class AuditedViewMixin(Base):
    """Mixin for REST views: the audit log records refused requests and responses that show a person a run's payloads.

    In the bases of a class it comes before the view class of DRF. ``checked_run`` is the run whose permissions were
    checked last.
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
        """Return the caller's redactor. If it shows payloads, the audit log records the read with the response."""
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
            # No run was found: the audit log keeps the text that the caller asked for.
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


try:
    from temporalex_django.rest.openapi import ContractSchema
except ImportError:  # without the extra there is no description
    ContractSchema = None  # type: ignore[assignment,misc] # see above

if TYPE_CHECKING:
    GenericViewSet = viewsets.GenericViewSet[Any]
else:
    GenericViewSet = viewsets.GenericViewSet  # generic in the stubs only

APP_NAME = "temporalex_rest"
MAX_WAIT_SECONDS = 60.0


class PlainJSONRenderer(JSONRenderer):
    """Renderer of JSON in UTF-8, without spaces and without NaN, whatever the settings of the project say."""

    ensure_ascii = False
    compact = True
    strict = True


class JSONNegotiation(BaseContentNegotiation):
    """Content negotiation that always selects JSON."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        # Parameters such as the charset are ignored: the parser reads UTF-8 in any case.
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == media_type), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        renderer = next(iter(renderers))
        return renderer, str(renderer.media_type)


class ContractViewSet(AuditedViewMixin, GenericViewSet):
    """Base class of the view sets; each of their methods has a ``Contract``, which declares what it accepts.

    A request is checked in this order: the caller, the parameters, the run, and the body last.
    """

    parser_classes = (BoundedJSONParser,)
    renderer_classes = (PlainJSONRenderer,)
    content_negotiation_class = JSONNegotiation
    permission_classes = (InstancePermission,)
    throttle_classes = (ScopeThrottle,)
    pagination_class = NewestFirstPagination
    metadata_class = None  # OPTIONS: DRF's would describe forms that we do not have
    versioning_class = None
    # None and () replace the defaults of the project's ``REST_FRAMEWORK`` settings, which DRF would use otherwise.
    filter_backends = ()
    queryset = Instance.objects.none()
    #: Returns the address of a route if the routes are not those of ``urls.routes`` (see ``WorkflowViewMixin``).
    addresses: Callable[..., str] | None = None
    if ContractSchema is not None:
        schema = ContractSchema()

    @property
    def contract(self) -> Contract | None:
        """The contract of the requested method, or None if the view set does not have the method."""
        return getattr(getattr(self, self.action or "", None), "contract", None)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """Return the request, with UTF-8 as its encoding.

        JSON and addresses are UTF-8. The encoding that a client declares is ignored, because some codecs of Python do
        not produce text.
        """
        request.encoding = "utf-8"
        return super().initialize_request(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # DRF authenticates, throttles and asks for permissions here: users learn nothing about parameters before that.
        super().initial(request, *args, **kwargs)
        if (contract := self.contract) is None:
            return
        reject_unknown(request.query_params, self.parameter_names())
        for header, is_accepted in ((IDEMPOTENCY_KEY, contract.keyed), ("If-Match", contract.matched)):
            # A client that sends one of them relies on it: ignoring it would break its guarantee silently.
            if header in request.headers and not is_accepted:
                raise ValidationError({header: ["This address does not accept this header."]})
        # Keys are stored by user, so those of anonymous callers would collide.
        if IDEMPOTENCY_KEY in request.headers and not sender_key(self._user):
            raise ValidationError({IDEMPOTENCY_KEY: ["Log in to use this header: each key belongs to one user."]})

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        finalized = super().finalize_response(request, response, *args, **kwargs)
        # Each response is for one user, and true for a moment: no cache may keep it.
        finalized.headers["Cache-Control"] = "private, no-store"
        return finalized

    def parameter_names(self) -> list[str]:
        """Return the names of the query parameters that the requested method accepts."""
        assert self.contract is not None
        return [parameter.name for parameter in self.contract.query]

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return problem_handler

    # -- the caller ----------------------------------------------------------------------------------------------------

    @property
    def _user(self) -> Person:
        return cast("Person", self.request.user)

    def is_sent_by_program(self, request: Request) -> bool:
        """Return True if a program sent this request, and not a person.

        Every authentication except the session of a browser counts as a program.
        """
        return not isinstance(request.successful_authenticator, SessionAuthentication)

    def _actor(self) -> Actor:
        request = self.request
        return Actor(
            user=request.user,
            source="rest",
            address=client_address(request.META),
            request_id=request_id(request.META),
            program=self.is_sent_by_program(request),
        )

    # -- the request ---------------------------------------------------------------------------------------------------

    def _body(self, serializer_class: type[serializers.Base] | None = None) -> dict[str, Any]:
        """Return the validated body. Raises ``ValidationError``."""
        if serializer_class is None:
            assert self.contract is not None
            assert self.contract.body is not None
            serializer_class = self.contract.body
        request_data = self.request.data
        serializer = serializer_class(data={} if request_data is None else request_data)
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def _wait_seconds(self, *, default: float) -> float:
        text = self.request.query_params.get("wait")
        try:
            seconds = default if text is None else float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= MAX_WAIT_SECONDS:
            raise ValidationError({"wait": [f"Enter a number of seconds from 0 to {MAX_WAIT_SECONDS:g}."]})
        return seconds

    def _text_parameter(self, name: str) -> str:
        """Return a query parameter, or "". Raises ``ValidationError`` for unprintable characters."""
        text: str = self.request.query_params.get(name, "")
        # Databases refuse NUL in a text, and answer with an error that looks like a fault of the server.
        if not text.isprintable():
            raise ValidationError({name: ["Use printable characters only."]})
        return text

    def _number_parameter(self, name: str, *, default: int, maximum: int) -> int:
        """Return a query parameter from 0 to ``maximum``. Raises ``ValidationError`` for another text."""
        text = self.request.query_params.get(name)
        if text is None:
            return default
        # ``int`` also reads other digits, signs and underscores, and takes a long time for thousands of digits.
        if not text.isascii() or not text.isdigit() or len(text) > len(str(maximum)) or int(text) > maximum:
            raise ValidationError({name: [f"Enter a whole number from 0 to {maximum}."]})
        return int(text)

    def _page_bounds(self) -> tuple[int, int]:
        """Return ``(after, limit)``: a page begins after the row with that ``seq``. Raises ``ValidationError``."""
        after_seq = self._number_parameter("after", default=0, maximum=2**31 - 1)
        return after_seq, self._number_parameter(
            "limit", default=DEFAULT_PAGE_ROWS, maximum=MAX_PAGE_ROWS
        ) or DEFAULT_PAGE_ROWS

    # -- the response --------------------------------------------------------------------------------------------------

    def _url_for(self, url_name: str, **arguments: str) -> str:
        if self.addresses is not None:
            return self.addresses(url_name, **arguments)
        match = self.request.resolver_match
        namespace = match.namespace if match is not None else APP_NAME
        return reverse(f"{namespace}:{url_name}" if namespace else url_name, kwargs=arguments, request=self.request)

    def _next_url(self, url_name: str, query: Mapping[str, Any], **arguments: str) -> str:
        """Return the URL of the next page; ``arguments`` are those of the URL itself."""
        return f"{self._url_for(url_name, **arguments)}?{urlencode(query)}"

    def _page_response(self, rendered: Sequence[Any]) -> Response:
        paginator = self.paginator
        assert isinstance(paginator, NewestFirstPagination)
        return self.get_paginated_response(paginator.fit_page(rendered))
