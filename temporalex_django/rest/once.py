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
from temporalex_django.rest.contract import KEY

T = TypeVar("T")
Method = Callable[..., Response]


class Repeatable(ContractViewSet):
    """Has methods that are ``once``."""

    asked: IdempotentRequest | None = None

    @abstractmethod
    def again(self, made: UUID, *, new: bool, **names: Any) -> Response:
        """The answer to a request that was done before; ``names`` are those of its address."""

    def _done(self, do: Callable[[], T], made: Callable[[T], tuple[UUID, bool]]) -> T:
        """What ``do`` gives, which executes an action; ``made`` says of it what is noted (see ``KeptAnswer``)."""
        if self.asked is None:
            return do()
        with self.asked.run_once() as answer:
            result = do()
            answer.made, answer.new = made(result)
        return result


def once(method: Method) -> Method:
    """Give a method of a view set the header. A request that was refused leaves no key."""

    @wraps(method)
    def keyed(self: Repeatable, request: Request, **names: Any) -> Response:
        key = request.headers.get(KEY)
        if key is None:
            return method(self, request, **names)
        self.asked = IdempotentRequest(by=self._actor(), key=check_message_id(key, label=KEY), request=_said(request))
        try:
            self.asked.check_duplicate()
            return method(self, request, **names)
        except DuplicateRequest as before:
            return self.again(before.object_id, new=before.is_new, **names)

    return keyed


@contextmanager
def key_is_id(request: Request) -> Iterator[None]:
    """Around a message of which the key is the id. Raises ``IdempotencyKeyReused`` for one that another has."""
    try:
        yield
    except MessageIdTaken as exc:
        if KEY not in request.headers:
            raise
        raise IdempotencyKeyReused(str(exc)) from exc


def _said(request: Request) -> bytes:
    """All that it says, however it is written."""
    try:
        return json.dumps([request.method, request.get_full_path(), request.data], sort_keys=True).encode()
    except RecursionError:
        raise ParseError("Malformed JSON: it is nested too deep.") from None
