"""Messages to a run: signals and queries."""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.functional import Promise

from temporalex_django import access
from temporalex_django.authoring.declared_messages import check_payload
from temporalex_django.authoring.requests import StartOutcome, StartRequest
from temporalex_django.authoring.workflow import require_signal
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.backends.tables.queries import TablesQuery
from temporalex_django.core.failures import exception_name, is_error
from temporalex_django.core.messages.sender import Headers, check_headers
from temporalex_django.core.names import check_message_id, check_name
from temporalex_django.core.payloads import codec
from temporalex_django.db.inserts import find_message, insert_message, notify_on_commit, update_outcome
from temporalex_django.engine.external_messages import MessageFingerprint
from temporalex_django.errors import AlreadyRunning, QueryFailed, TemporalexError, UnknownQuery, WorkflowNotFound
from temporalex_django.operations.base import CODE, Action, Actor, to_plain_payload
from temporalex_django.operations.run_lookup import RunAction, find_run
from temporalex_django.operations.runs.start import Start

# --- signal -----------------------------------------------------------------------------------------------------------
#
# Send a signal to a run.


class SendSignal(RunAction[None]):
    """Operation that sends a signal to a chain.

    It is one INSERT into the inbox, in the caller's transaction if one is open, and locks nothing.

    With ``id`` it is safe to send the signal again: a message of that id is stored once. With ``exact``, a message that
    has the id and another payload raises ``MessageIdTaken``. If the earlier message has become a failed message, this
    one replaces it and is delivered; the audit log then records the digests of both payloads.

    Raises ``PayloadError``, ``InvalidId``, ``InvalidHeaders``, and ``UnknownSignal`` if this process has the class and
    it declares no such signal. Raises ``WorkflowClosed`` if the run was closed when ``target`` was read. If the run
    closes before it reads the signal, nothing is raised, and the message is settled as undelivered.
    """

    name: ClassVar[str] = "signal"
    cluster: ClassVar[str | Promise] = "asks"
    permission: ClassVar[str] = "signal_instance"
    authorized_by_run: ClassVar[bool] = True
    is_routine: ClassVar[bool] = True

    def __init__(
        self,
        target: RunTarget,
        *,
        signal: str,
        payload: Any = None,
        id: str | None = None,
        headers: Headers | None = None,
        exact: bool = False,
        by: Actor = CODE,
    ) -> None:
        super().__init__(by=by)
        self.target = target
        self.signal = signal
        self.payload = payload
        self.message_id = id
        self.headers = None if headers is None else check_headers(headers, label=f"signal {signal!r}")
        self.exact = exact
        self._replaces_failed = False

    @property
    def is_audited(self) -> bool:
        """True if a person or a forced operation sent the signal, or if it has replaced a failed message."""
        return self._replaces_failed or super().is_audited

    @property
    def message_name(self) -> str:
        return str(self.signal)

    def perform(self) -> None:
        target, name = self.target, check_name(self.signal, label="signal")
        payload = to_plain_payload(self.payload, label=f"the payload of signal {name!r}")
        message_id = None
        if self.message_id is not None:
            message_id = check_message_id(self.message_id, label="signal")
        sender = self.by.sender
        fingerprint = MessageFingerprint("signal", name, payload, sender)
        # A sender that lost its connection repeats the signal, and must not fail because the first one did its work.
        if target.closed and message_id is not None and self._was_read(message_id, fingerprint):
            return
        target.require_open(f"signal {name!r}")
        if (code := target.workflow_class) is not None:
            require_signal(code, name)
            if not codec.is_exact(self.payload, payload):
                check_payload(code, "signal", name, self.payload, payload)
        # The insert locks nothing of the run, so senders never wait for workers (see decision 6).
        with self.audit_transaction():
            content = {"kind": "signal", "name": name, "body": payload, "sender": sender, "headers": self.headers}
            if (remote := self.remote) is not None:
                inserted = remote.send(target, message_id=message_id, exact=self.exact, storage=self.storage, **content)
            else:
                inserted = insert_message(
                    target.chain_id, request_id=message_id, exact=self.exact, storage=self.storage, **content
                )
                notify_on_commit(alias=self.storage.alias, queues=[target.queue])
            # The message takes the place of a failed one (see decision 46).
            if inserted.replaced is not None:
                self._replaces_failed = True
                self.record(
                    target.audit_subject,
                    signal=name,
                    message=message_id,
                    digest=codec.digest(payload),
                    replaced=inserted.replaced,
                )
            elif inserted.new:
                self.record(target.audit_subject, signal=name)

    def _was_read(self, message_id: str, fingerprint: MessageFingerprint) -> bool:
        """Return True if the message was read before the close. Raises ``MessageIdTaken`` for other content."""
        if (earlier_message := find_message(self.target.chain_id, message_id, storage=self.storage)) is None:
            return False
        earlier_message[1].require_same(message_id, fingerprint, exact=self.exact)
        outcome = update_outcome(self.target.chain_id, message_id, storage=self.storage)
        return outcome is not None and outcome.status == "completed"


# --- signal with start ------------------------------------------------------------------------------------------------
#
# Send a signal to the open run of an id, and start the run if there is none.


class SignalWithStart(Action[RunTarget]):
    """Operation that sends a signal to the open run of an id, or starts a run with that id and sends it the signal.

    ``request`` describes the run to start and must have an ``id``. Returns the target of the run. Everything is one
    transaction, which is the caller's if one is open. Raises what ``Start`` and ``SendSignal`` raise.
    ``AlreadyRunning`` means that a run of another class has the id, or that another transaction has started it and has
    not committed.
    """

    name: ClassVar[str] = "signal_with_start"
    permission: ClassVar[str] = "start_instance"
    # The signal is authorized by its handler. ``Start`` checks the access to the start itself.
    authorized_by_run: ClassVar[bool] = True

    def __init__(self, request: StartRequest, *, signal: str, payload: Any = None, by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.request = request
        self.headers = request.headers
        self.signal = signal
        self.payload = payload
        self.outcome: StartOutcome = "started"

    @property
    def workflow_name(self) -> str:
        return self.request.workflow.name

    @property
    def message_name(self) -> str:
        return str(self.signal)

    def perform(self) -> RunTarget:
        start = Start(self.request, by=self.by)
        self.outcome = "existing"
        with self.storage.transaction():
            target = self._find_open_run()
            if target is None:
                try:
                    target = start.execute()
                    self.outcome = start.outcome
                except AlreadyRunning:
                    # Somebody else started the run after the lookup above.
                    target = self._find_open_run()
                    if target is None:
                        raise
            SendSignal(target, signal=self.signal, payload=self.payload, headers=self.headers, by=self.by).execute()
        return target

    def _find_open_run(self) -> RunTarget | None:
        assert self.request.id is not None
        try:
            visible_runs = access.runs_for(self.by.user, alias=self.storage.alias)
            target = find_run(
                self.request.id, storage=self.storage, workflow=self.request.workflow.name, visible_runs=visible_runs
            )
        except WorkflowNotFound:
            return None
        if target.closed or target.pinned is not None:
            return None
        return target


# --- query ------------------------------------------------------------------------------------------------------------
#
# Query a run: its published state answers.


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
    cluster: ClassVar[str | Promise] = "asks"
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
            return self._ask()
        redactor = access.redactor_for(user, self.row)
        try:
            return redactor.redact_answer(self._ask(), message_name=self.message_name)
        except QueryFailed as exc:
            cause = exc.__cause__
            if redactor.shows_error_text or cause is None or is_error(cause, TemporalexError):
                raise
            label = f"query {self.message_name!r} of {self.target.workflow} raised {exception_name(type(cause))}"
            # The text of an exception of the query may quote payloads that this user may not see.
            raise QueryFailed(f"{label} ({redactor.redact_text('')})") from None

    def _ask(self) -> Any:
        remote = self.remote
        return TablesQuery(self).answer() if remote is None else remote.query(self)

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
