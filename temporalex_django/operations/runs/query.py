"""Query a run: its published state answers."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalex_django import access
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.routing import backend_of
from temporalex_django.core.failures import exception_name, is_error
from temporalex_django.errors import QueryFailed, TemporalexError, UnknownQuery
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.run_lookup import RunAction

BUILT_IN = ("__accepts", "__describe")


class Query(RunAction[Any]):
    """Operation that answers a query from the published state in the row of the run, in this process.

    ``query`` is the name of the query, and ``args`` its argument; None for a query without one.

    With ``fresh`` (the default), unread messages of the run, or its first activation, are processed here before that.
    This takes a transaction of its own, or the caller's. If the lock of the chain is not free within
    ``UPDATE_LOCK_WAIT`` seconds, the query is answered from the row as it is. Without ``fresh``, it always is.

    Raises ``UnknownQuery``, ``QueryFailed``, ``UnknownWorkflow`` if this process lacks the class, and ``NestingError``.
    """

    name: ClassVar[str] = "query"
    permission: ClassVar[str] = "query_instance"

    def __init__(
        self, target: RunTarget, *, query: str, args: Any = None, fresh: bool = True, by: Actor = CODE
    ) -> None:
        super().__init__(by=by)
        self.target = target
        self.query = query
        self.args = args
        self.fresh = fresh

    @property
    def message_name(self) -> str:
        return str(self.query)

    @property
    def redacts_answer(self) -> bool:
        """True if parts of the answer may be hidden from the user."""
        return self.by.user is not None

    def perform(self) -> Any:
        user = self.by.user
        if user is None:
            return backend_of(self.target).query(self)
        redactor = access.redactor_for(user, self.row)
        try:
            return redactor.redact_answer(backend_of(self.target).query(self), message_name=self.message_name)
        except QueryFailed as exc:
            cause = exc.__cause__
            if redactor.shows_error_text or cause is None or is_error(cause, TemporalexError):
                raise
            label = f"query {self.message_name!r} of {self.target.workflow} raised {exception_name(type(cause))}"
            # The text of an exception of the query may quote payloads that this user may not see.
            raise QueryFailed(f"{label} ({redactor.redact_text('')})") from None

    def answer_built_in(self) -> Any:
        """Return the answer to a query whose name begins with two underscores."""
        from temporalex_django.operations.read.describe import describe  # noqa: PLC0415 - it reads more than a query

        user = self.by.user
        # The answer is that of ``describe``, so it requires the permission to view the run as well.
        access.require_access(user, access.VIEW, alias=self.storage.alias, run=self.row)
        redactor = access.redactor_for(user, self.row)
        description = describe(self.target, storage=self.storage, redactor=redactor)
        match self.query:
            case "__accepts":
                return description.accepts
            case "__describe":
                fields = description.as_dict()
                return {k: v.isoformat() if hasattr(v, "isoformat") else v for k, v in fields.items()}
        raise UnknownQuery(f"there is no built-in query {self.query!r} (built-in queries: {', '.join(BUILT_IN)})")
