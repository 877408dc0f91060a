"""The base class of all view sets, the contracts of their methods, and requests that are sent again.

Requests and responses are JSON, with the errors of this package, and with little of the project's own.

Two settings of the project count: its authentication, and the throttle rates that it gives to the scopes of this
package. Its throttles, filters, pagination, versioning, renderers and exception handler apply to its own views only.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest
from rest_framework import viewsets
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse
from rest_framework.status import is_success
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import APIView

from temporalex_django.access import redactor_for
from temporalex_django.authoring.authorization import Person, sender_key
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.contrib.request_id import request_id
from temporalex_django.core.names import check_message_id
from temporalex_django.errors import IdempotencyKeyReused, MessageIdTaken
from temporalex_django.forms.run_filters import RunFilter
from temporalex_django.models import Instance
from temporalex_django.operations import audit
from temporalex_django.operations.audit import client_address
from temporalex_django.operations.base import Actor
from temporalex_django.operations.idempotency import DuplicateRequest, IdempotentRequest, RunVersion
from temporalex_django.rest import serializers
from temporalex_django.rest.lists import DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS, NewestFirstPagination
from temporalex_django.rest.requests import (
    IDEMPOTENCY_KEY,
    BoundedJSONParser,
    Contract,
    InstancePermission,
    ScopeThrottle,
    problem_handler,
    reject_unknown,
)

if TYPE_CHECKING:
    Base = APIView
else:
    Base = ABC


T = TypeVar("T")
Method = Callable[..., Response]


# --- view sets --------------------------------------------------------------------------------------------------------


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
    #: The filters of the list.
    filterset_class: type[RunFilter] | None = None
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
        filters = self.filterset_class.base_filters if self.filterset_class and self.action == "list" else ()
        return [*filters, *(parameter.name for parameter in self.contract.query)]

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


# --- idempotency ------------------------------------------------------------------------------------------------------
#
# The header ``Idempotency-Key``, for requests that start runs or operate them.
#
# A request that is sent again with its key is not executed again, and gets the same response.


class IdempotentViewSet(ContractViewSet):
    """Base class of view sets whose methods may accept the header ``Idempotency-Key``.

    Such a method is decorated with ``with_idempotency_key``. ``idempotent_request`` is the present request if it has a
    key, or else None.
    """

    idempotent_request: IdempotentRequest | None = None

    @abstractmethod
    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        """Return the response to a request with an ``Idempotency-Key`` that was executed before, from the present rows.

        ``object_id`` is the id of the run, job or task that the first response showed, and ``is_new`` is True if that
        request created it. ``names`` are the arguments of the URL.
        """

    def _run_once(
        self,
        execute: Callable[[], T],
        key_of_result: Callable[[T], tuple[UUID, bool]],
        *,
        at_once: bool = False,
    ) -> T:
        """Call ``execute``, and store the request's key in the same transaction (``at_once``: before it).

        ``at_once`` means that another system does the work. ``key_of_result`` returns the id of the object that the
        response shows, and True if it is new. Raises ``DuplicateRequest`` if the request was executed before.
        """
        if self.idempotent_request is None:
            return execute()
        # One transaction for the key and the action: a crash leaves both or neither.
        request = self.idempotent_request
        with request.run_once_at_once() if at_once else request.run_once() as kept_answer:
            result = execute()
            kept_answer.made, kept_answer.new = key_of_result(result)
        return result


def with_idempotency_key(method: Method) -> Method:
    """Decorate a method of a view set so that it accepts the header ``Idempotency-Key``.

    A request that is sent again with its key is not executed; the method ``repeat_response`` answers it. A request that
    was refused does not use up its key.
    """

    @wraps(method)
    def wrapper(self: IdempotentViewSet, request: Request, **names: Any) -> Response:
        key = request.headers.get(IDEMPOTENCY_KEY)
        if key is None:
            return method(self, request, **names)
        self.idempotent_request = IdempotentRequest(
            by=self._actor(), key=check_message_id(key, label=IDEMPOTENCY_KEY), request=_request_bytes(request)
        )
        try:
            # First without a lock, for the usual repetition; ``run_once`` raises the same for one that runs at the same
            # time.
            self.idempotent_request.check_duplicate()
            return method(self, request, **names)
        except DuplicateRequest as before:
            return self.repeat_response(before.object_id, is_new=before.is_new, **names)

    return wrapper


@contextmanager
def translate_key_reuse(request: Request) -> Iterator[None]:
    """Turn ``MessageIdTaken`` into ``IdempotencyKeyReused`` if the ``Idempotency-Key`` serves as the message id.

    Put it around the sending of a message. The client then gets an error about the header that it sent.
    """
    try:
        yield
    # A message stores its own id with its effect, so it needs no row for the key (see decision 25).
    except MessageIdTaken as exc:
        if IDEMPOTENCY_KEY not in request.headers:
            raise
        raise IdempotencyKeyReused(str(exc)) from exc


def _request_bytes(request: Request) -> bytes:
    """Return bytes that recognize a request that is sent again. Bodies with equal JSON give equal bytes."""
    try:
        return json.dumps([request.method, request.get_full_path(), request.data], sort_keys=True).encode()
    except RecursionError:
        raise ParseError("Malformed JSON: it is nested too deeply.") from None


# --- etags ------------------------------------------------------------------------------------------------------------
#
# The headers ``ETag`` and ``If-Match``.
#
# A tag contains the version of the run or schedule that a client has seen. So an operation can be refused if it has
# changed. For a run, the error says what has changed.


_PART_COUNT = 6
_ANY = "*"


def etag_of(version: RunVersion, body: Any) -> str:
    """Return the ``ETag`` of a response about a run.

    It contains the version of the run, with which ``If-Match`` is compared, and a digest of ``body``.
    """
    digest = _digest(body)
    paused = "paused" if version.paused else ""
    return f'"{version.run_id.hex}.{version.events}.{version.status}.{version.blocked}.{paused}.{digest}"'


def _digest(body: Any) -> str:
    # The digest is for caches only: ``If-Match`` compares the version, and ignores changes of other fields.
    return hashlib.sha256(json.dumps(body, cls=JSONEncoder).encode("utf-8", "replace")).hexdigest()[:12]


def schedule_etag(changed_at: datetime, body: Any) -> str:
    """Return the ``ETag`` of a response about a schedule.

    It contains the time at which the definition was changed, with which ``If-Match`` is compared, and a digest of
    ``body``.
    """
    return f'"{changed_at.isoformat()}.{_digest(body)}"'


def parse_schedule_if_match(header: str) -> list[datetime] | None:
    """Return the times of the last change that a header ``If-Match`` about a schedule accepts; None for ``*``.

    None means that any state of the schedule is accepted. Tags that this package has not made are left out.
    """
    if header.strip() == _ANY:
        return None
    times = []
    for tag_text in header.split(","):
        try:
            times.append(datetime.fromisoformat(_tag_content(tag_text).rpartition(".")[0]))
        except ValueError:
            continue
    return times


def _tag_content(tag: str) -> str:
    """Return an entity tag without quotes and ``W/``: proxies that compress responses weaken tags."""
    return tag.strip().removeprefix("W/").strip('"')


def parse_if_match(header: str) -> list[RunVersion] | None:
    """Return the versions of a run that a header ``If-Match`` accepts, or None for ``*``, which accepts any.

    Tags that this package has not made are left out.
    """
    if header.strip() == _ANY:
        return None
    # An empty list matches nothing, so a header with foreign tags alone is refused.
    versions = (_parse_etag(tag_text.strip()) for tag_text in header.split(","))
    return [tag_text for tag_text in versions if tag_text is not None]


def _parse_etag(tag: str) -> RunVersion | None:
    """Return the version in a tag, or None if this package has not made the tag."""
    parts = _tag_content(tag).split(".")
    if len(parts) != _PART_COUNT:
        return None
    try:
        return RunVersion(
            run_id=UUID(parts[0]), events=int(parts[1]), status=parts[2], blocked=parts[3], paused=bool(parts[4])
        )
    except ValueError:
        return None
