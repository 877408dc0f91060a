"""``Idempotency-Key`` of what starts runs and steers them: the same request again is done once, and answered alike."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar
from uuid import UUID

from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django.actions.once import DuplicateRequest, IdempotentRequest
from temporalex_django.core.names import check_message_id
from temporalex_django.errors import IdempotencyKeyReused, MessageIdTaken
from temporalex_django.rest.base import ContractViewSet
from temporalex_django.rest.contract import IDEMPOTENCY_KEY

T = TypeVar("T")
Method = Callable[..., Response]


class IdempotentViewSet(ContractViewSet):
    """Has methods that are ``with_idempotency_key``."""

    idempotent_request: IdempotentRequest | None = None

    @abstractmethod
    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        """The answer to a request that was done before; ``names`` are those of its address."""

    def _run_once(self, execute: Callable[[], T], key_of_result: Callable[[T], tuple[UUID, bool]]) -> T:
        """What ``execute`` gives, which executes an action.

        ``key_of_result`` says of it what is noted (see ``KeptAnswer``).
        """
        if self.idempotent_request is None:
            return execute()
        with self.idempotent_request.run_once() as kept_answer:
            result = execute()
            kept_answer.made, kept_answer.new = key_of_result(result)
        return result


def with_idempotency_key(method: Method) -> Method:
    """Give a method of a view set the header. A request that was refused leaves no key."""

    @wraps(method)
    def wrapper(self: IdempotentViewSet, request: Request, **names: Any) -> Response:
        key = request.headers.get(IDEMPOTENCY_KEY)
        if key is None:
            return method(self, request, **names)
        self.idempotent_request = IdempotentRequest(
            by=self._actor(), key=check_message_id(key, label=IDEMPOTENCY_KEY), request=_request_bytes(request)
        )
        try:
            self.idempotent_request.check_duplicate()
            return method(self, request, **names)
        except DuplicateRequest as before:
            return self.repeat_response(before.object_id, is_new=before.is_new, **names)

    return wrapper


@contextmanager
def translate_key_reuse(request: Request) -> Iterator[None]:
    """Around a message of which the key is the id. Raises ``IdempotencyKeyReused`` for one that another has."""
    try:
        yield
    except MessageIdTaken as exc:
        if IDEMPOTENCY_KEY not in request.headers:
            raise
        raise IdempotencyKeyReused(str(exc)) from exc


def _request_bytes(request: Request) -> bytes:
    """All that it says, however it is written."""
    try:
        return json.dumps([request.method, request.get_full_path(), request.data], sort_keys=True).encode()
    except RecursionError:
        raise ParseError("Malformed JSON: it is nested too deep.") from None
