"""``WorkflowHandle``: the operations on a run from outside, wherever the run lives.

A method builds a request, and the backend of the run performs it. The backend is the database, a test environment, or
an engine without Django. The methods for async code, with the prefix ``a``, are made from the same definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Self, overload

from temporalex_django.authoring import backend as backends
from temporalex_django.authoring import foreign_options
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.authoring.requests import (
    UNSET,
    RunAddress,
    RunRequest,
    StartOutcome,
    async_method,
    inputs,
    operation_method,
    readable_type,
)
from temporalex_django.authoring.start_api import T2, T3, P, R, Result_co, T, TypedWorkflow
from temporalex_django.core.history.events import HistoryEvent

if TYPE_CHECKING:
    from uuid import UUID

    from typing_extensions import Unpack

    from temporalex_django.authoring.backend import Backend
    from temporalex_django.authoring.start_api import QueryOptions, Startable, UpdateFunction, UpdateOptions
    from temporalex_django.core.messages.phase import Handler

#: Default waits in seconds: for the answer of an update, resume or decision, and for a result.
ANSWER_TIMEOUT: Final = 10.0
RESULT_TIMEOUT: Final = 30.0


def _answers_options(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a method that sends a message: it answers fields of the value that are options."""
    fields = "the arguments are one value, so write it after the name: "
    return foreign_options.answers_foreign_options(name, foreign_options.MESSAGE, fields=fields)


class WorkflowHandle(Generic[Result_co]):
    """The handle of a run: it belongs to the newest chain of a business id, or to one particular chain.

    A handle that ``start`` returned, or that was made with a run id, belongs to the chain of that run. Making a handle
    reads nothing. ``workflow`` limits the search to one class, which the scopes ``workflow`` and ``version`` need. A
    method raises ``WorkflowNotFound`` if there is no such run. It raises ``AmbiguousId`` if several workflows used the
    id and not exactly one of them has an open run.

    ``by`` is the user in whose name a method acts; None means code, which may do anything. The user is recorded in
    the audit log and in messages. The handler decides who may send a message (``permission=``, or the role of an
    approval). All other methods need the permission of the operation (``temporalex_django.cancel_instance`` …). They
    raise ``ActionNotPermitted`` without it, and write nothing then. ``reason`` is a text for the audit log.

    ``start_outcome`` says what the start did that returned the handle: "started", "existing", "replaced"
    or "debounced".
    """

    #: What the start did that returned this handle; None for other handles.
    start_outcome: StartOutcome | None = None

    @overload
    def __init__(
        self: WorkflowHandle[R], id: str | UUID, *, workflow: type[TypedWorkflow[Any, R]], chain_id: UUID | None = None
    ) -> None: ...
    @overload
    def __init__(
        self, id: str | UUID, *, workflow: type[Startable] | None = None, chain_id: UUID | None = None
    ) -> None: ...
    def __init__(self, id: str | UUID, *, workflow: Any = None, chain_id: UUID | None = None) -> None:
        self._backend: Backend = backends.bound_backend()
        self._address = RunAddress(id=str(id), chain_id=chain_id, workflow=workflow)

    @property
    def id(self) -> str:
        """The business id, or the run id that the handle was made with."""
        return self._address.id

    @property
    def chain_id(self) -> UUID | None:
        """The id of the chain, if the handle belongs to one particular chain."""
        return self._address.chain_id

    if not TYPE_CHECKING:  # type checkers report these names themselves

        def __getattr__(self, name: str) -> Any:
            text = foreign_options.unknown_name("a handle", name, dir(type(self)), foreign_options.HANDLE)
            raise AttributeError(text, name=name, obj=self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WorkflowHandle):
            return NotImplemented
        return (self._backend, self._address) == (other._backend, other._address)

    def __hash__(self) -> int:
        return hash(self._address)

    # -- messages ------------------------------------------------------------------------------------------------------

    @operation_method
    @_answers_options("signal")
    def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        by: Person | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RunRequest[None]:
        """Send the signal ``name`` with ``payload``.

        It is one INSERT on the caller's connection, and commits or rolls back with the caller's transaction. With an
        ``id`` it is safe to send the signal again: the run gets it once. If the handler has a ``permission``, ``by`` is
        checked when the signal is dispatched; a refused signal leaves only an audit row. ``headers`` are texts by name,
        which ``api.headers()`` returns in the handler. Raises ``WorkflowClosed``, ``PayloadError``, ``InvalidId``,
        ``InvalidHeaders``; nothing is written then.
        """
        return RunRequest("signal", by, inputs(signal=name, payload=payload, id=id, headers=headers))

    asignal = async_method(signal)

    if TYPE_CHECKING:

        @overload
        def update(self, name: Any, args: Any = None, *, returns: type[T], **options: Unpack[UpdateOptions]) -> T: ...
        @overload
        def update(
            self, name: UpdateFunction[T, T2, T3], args: Any = None, **options: Unpack[UpdateOptions]
        ) -> T | T2 | T3: ...
        @overload
        def update(
            self, name: str | Handler, args: Any = None, *, returns: Any = None, **options: Unpack[UpdateOptions]
        ) -> Any: ...
        def update(self, name: Any, args: Any = None, **options: Any) -> Any: ...

        @overload
        async def aupdate(
            self, name: Any, args: Any = None, *, returns: type[T], **options: Unpack[UpdateOptions]
        ) -> T: ...
        @overload
        async def aupdate(
            self, name: UpdateFunction[T, T2, T3], args: Any = None, **options: Unpack[UpdateOptions]
        ) -> T | T2 | T3: ...
        @overload
        async def aupdate(
            self, name: str | Handler, args: Any = None, *, returns: Any = None, **options: Unpack[UpdateOptions]
        ) -> Any: ...
        async def aupdate(self, name: Any, args: Any = None, **options: Any) -> Any: ...
    else:

        @operation_method
        @_answers_options("update")
        def update(
            self,
            name: Any,
            args: Any = None,
            *,
            id: str | None = None,
            timeout: float | None = ANSWER_TIMEOUT,
            mode: str = "auto",
            by: Person | None = None,
            headers: Mapping[str, str] | None = None,
            returns: Any = None,
        ) -> RunRequest[Any]:
            """Send the update ``name`` with ``args`` to the run, wait until it is handled, and return its answer.

            ``name`` may be the function that handles it, if the source of the class shows its name. The answer has the
            type ``returns``, or else the one that the handler declares. It is plain data if the handler declares none,
            or if the source of the class does not show the handler.

            With an ``id`` it is safe to send the update again: you get its first outcome. ``timeout`` is in seconds;
            None waits for ever. ``mode`` "auto" may run the turn in this process, which locks the chain meanwhile;
            "worker" leaves the turn to a worker. If the connection to the database breaks while the update is sent,
            nobody knows whether it was stored. ``UpdateTimeout`` with the code ``unknown`` is raised then; ask again
            with its ``update_id``. ``headers`` are texts by name, which ``api.headers()`` returns in the validator and
            the handler.

            Raises ``UpdateRejected``, ``WorkflowClosed``, ``UpdateFailed``, ``UpdateTimeout``, ``PayloadError`` and
            ``InvalidHeaders``. Raises ``ActionNotPermitted`` if ``by`` lacks the ``permission`` of the handler.
            """
            message = inputs(update=name, args=args, id=id, timeout=timeout, mode=mode, headers=headers)
            return RunRequest("update", by, message, readable_type("update", returns))

        aupdate = async_method(update)

    @operation_method
    def resume(
        self,
        event: str,
        step: Any = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> RunRequest[None]:
        """Give a graph the event that one of its steps is waiting for.

        ``data`` is stored under the step's key, with the person who decided (``by``). ``step`` (a step, or its key)
        selects the step if several wait for the event. A plain name as ``by`` is recorded, and has no role. The call
        waits until the event is applied, at most ``timeout`` seconds (None: for ever).

        Raises ``ResumeRefused`` if no step or several steps match, and ``ActionNotPermitted`` if ``by`` lacks the role
        of the step. Raises ``WorkflowClosed``, ``PayloadError`` and ``UpdateTimeout``, too. Nothing changes then.
        """
        return RunRequest("resume", by, inputs(event=event, step=step, data=data, timeout=timeout))

    aresume = async_method(resume)

    @operation_method
    def human_tasks(self, *, by: Person | None = None) -> RunRequest[list[OpenHumanTask]]:
        """Return the open human tasks of the run, oldest first; for a user, those that they may see."""
        return RunRequest("human_tasks", by)

    ahuman_tasks = async_method(human_tasks)

    @operation_method
    def decide(
        self,
        outcome: str,
        *,
        task: str | None = None,
        data: Any = None,
        comment: str = "",
        by: Person | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> RunRequest[None]:
        """Decide a human task of the run with ``outcome``, in the name of the user ``by``.

        ``task`` is its key, id or title; leave it out if exactly one is open. ``data`` are the data that its form asks
        for. The call waits until the decision is applied, at most ``timeout`` seconds (None: for ever). Raises
        ``HumanTaskNotFound``, ``HumanTaskClosed`` with what happened instead, ``HumanTaskClaimed``,
        ``ActionNotPermitted``, ``FourEyes``, ``PayloadError``, ``RunPaused`` and ``UpdateTimeout``. Nothing changes
        then.
        """
        return RunRequest("decide", by, inputs(outcome=outcome, task=task, data=data, comment=comment, timeout=timeout))

    adecide = async_method(decide)

    if TYPE_CHECKING:

        @overload
        def query(self, name: Any, args: Any = None, *, returns: type[T], **options: Unpack[QueryOptions]) -> T: ...
        @overload
        def query(self, name: Callable[..., T], args: Any = None, **options: Unpack[QueryOptions]) -> T: ...
        @overload
        def query(
            self, name: str, args: Any = None, *, returns: Any = None, **options: Unpack[QueryOptions]
        ) -> Any: ...
        def query(self, name: Any, args: Any = None, **options: Any) -> Any: ...

        @overload
        async def aquery(
            self, name: Any, args: Any = None, *, returns: type[T], **options: Unpack[QueryOptions]
        ) -> T: ...
        @overload
        async def aquery(self, name: Callable[..., T], args: Any = None, **options: Unpack[QueryOptions]) -> T: ...
        @overload
        async def aquery(
            self, name: str, args: Any = None, *, returns: Any = None, **options: Unpack[QueryOptions]
        ) -> Any: ...
        async def aquery(self, name: Any, args: Any = None, **options: Any) -> Any: ...
    else:

        @operation_method
        @_answers_options("query")
        def query(
            self, name: Any, args: Any = None, *, fresh: bool = True, by: Person | None = None, returns: Any = None
        ) -> RunRequest[Any]:
            """Return the answer to the query ``name``, computed from the published state.

            ``name`` may be the function that answers it. The answer is plain data, or has the type ``returns`` or the
            one that this function declares. With ``fresh``, unread messages are delivered to the run first. Raises
            ``UnknownQuery``, ``QueryFailed``, and ``UnknownWorkflow`` if this process lacks the class.
            """
            message = inputs(query=name, args=args, fresh=fresh)
            return RunRequest("query", by, message, readable_type("query", returns))

        aquery = async_method(query)

    # -- result and end ------------------------------------------------------------------------------------------------

    @operation_method
    def result(self, timeout: float | None = RESULT_TIMEOUT, *, by: Person | None = None) -> RunRequest[Result_co]:
        """Wait for the result of the run and return it.

        If the run continues as new, the wait continues with the next run.

        ``timeout`` is in seconds; None waits for ever. Inside a transaction the method checks once and does not wait.
        Raises ``WorkflowFailed`` (or its subclasses ``WorkflowTerminated`` and ``WorkflowTimedOut``),
        ``WorkflowCancelled`` and ``ResultTimeout``.
        """
        return RunRequest("result", by, inputs(timeout=timeout))

    aresult = async_method(result)

    @operation_method
    def cancel(self, reason: str = "", *, by: Person | None = None) -> RunRequest[None]:
        """Ask the run to cancel. A graph is cancelled at once.

        The request is one INSERT on the caller's connection, and commits or rolls back with the caller's transaction.
        ``reason`` is a text for the audit log. Raises ``WorkflowClosed``.
        """
        return RunRequest("cancel", by, inputs(reason=reason))

    acancel = async_method(cancel)

    @operation_method
    def terminate(self, reason: str = "", *, by: Person | None = None) -> RunRequest[None]:
        """Close the run at once, in the caller's transaction and without running any of its code.

        Locks the chain. Raises ``WorkflowClosed``.
        """
        return RunRequest("terminate", by, inputs(reason=reason))

    aterminate = async_method(terminate)

    # -- reset and fork ------------------------------------------------------------------------------------------------

    @operation_method
    def reset(
        self,
        to: int | None = None,
        *,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> RunRequest[str]:
        """Reset the run to the point after its activation ``to`` (0: its start).

        A new run of the chain continues from there; its id is returned. The old run is closed as terminated
        (``reset``). Without ``to`` the run must be blocked or closed. The point is then after the last activation that
        the code replays as recorded and that did not close the run.

        ``messages`` that came after the point are delivered "again", or dropped with "drop". ``edited`` gives
        activities that were open at the point other arguments: ``{number: [argument, …]}``. Locks the chain, in the
        caller's transaction. Raises ``ActionNotPossible``, ``PayloadError``, ``UpdateTimeout``.
        """
        return RunRequest("reset", by, inputs(**_point(to, messages, edited), reason=reason))

    areset = async_method(reset)

    @operation_method
    def fork(
        self,
        to: int | None = None,
        *,
        id: str | None = None,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> RunRequest[Self]:
        """Start a run with the history of this one up to the activation ``to``, and return its handle.

        This run stays as it is. ``id`` is the business id of the new run, and is derived from the id of this one by
        default. Without ``to``, the point is after the last activation that the code replays as recorded and that did
        not close the run. ``messages`` that came after the point are delivered "again", or dropped with "drop".
        ``edited`` gives activities that were open at the point other arguments: ``{number: [argument, …]}``.

        Raises ``ActionNotPossible``, ``PayloadError``, ``UpdateTimeout``, ``InvalidId`` and ``AlreadyRunning``.
        """
        return RunRequest("fork", by, inputs(**_point(to, messages, edited), id=_unless_none(id), reason=reason))

    afork = async_method(fork)

    # -- operations ----------------------------------------------------------------------------------------------------

    @operation_method
    def pause(self, reason: str = "", *, by: Person | None = None) -> RunRequest[None]:
        """Pause the run: none of its code runs until ``unpause``. Signals and results that arrive meanwhile wait.

        Updates, resumes and decisions are refused with ``RunPaused``. Locks the chain. Raises ``WorkflowClosed``,
        ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``).
        """
        return RunRequest("pause", by, inputs(reason=reason))

    apause = async_method(pause)

    @operation_method
    def unpause(self, reason: str = "", *, by: Person | None = None) -> RunRequest[None]:
        """Continue a paused run, with everything that came meanwhile.

        Locks the chain. Raises ``WorkflowClosed``, ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``).
        """
        return RunRequest("unpause", by, inputs(reason=reason))

    aunpause = async_method(unpause)

    @operation_method
    def try_again(self, reason: str = "", *, by: Person | None = None) -> RunRequest[None]:
        """Try a blocked run once more now, without waiting for its back-off.

        A run that ended its workers is tried on one worker, separately from other runs. Locks the chain. Raises
        ``WorkflowClosed``, ``UpdateTimeout`` (code ``busy``), and ``ActionNotPossible`` if the run is not blocked, or
        is paused.
        """
        return RunRequest("try_again", by, inputs(reason=reason))

    atry_again = async_method(try_again)

    @operation_method
    def retry_activity(
        self, seq: int, *, input: Any = UNSET, reason: str = "", by: Person | None = None
    ) -> RunRequest[None]:
        """Try a failed activity again now, without waiting for its back-off.

        ``seq`` is the number of its command. ``input`` (a list of arguments, or an object of them by name) replaces its
        arguments, and gives it a new idempotency key. Locks the chain. Raises ``WorkflowClosed``,
        ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``), and ``PayloadError`` for an input that does not fit.
        """
        return RunRequest("retry_activity", by, inputs(seq=seq, input=input, reason=reason))

    aretry_activity = async_method(retry_activity)

    @operation_method
    def complete_activity(
        self, seq: int, result: Any = None, *, reason: str = "", by: Person | None = None
    ) -> RunRequest[None]:
        """End an activity with the ``result`` that you give. An attempt that still runs reports too late then.

        ``seq`` is the number of the activity's command. For a step of a graph the result is ``{"event": name, "data":
        …}``. Locks the chain. Raises ``WorkflowClosed``, ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``), and
        ``PayloadError`` for a result that does not fit its annotation.
        """
        return RunRequest("complete_activity", by, inputs(seq=seq, result=result, reason=reason))

    acomplete_activity = async_method(complete_activity)

    @operation_method
    def fail_activity(
        self, seq: int, message: str, *, type: str = "FailedByHand", reason: str = "", by: Person | None = None
    ) -> RunRequest[None]:
        """End an activity as failed, without a further attempt, with an error of that type and message.

        ``seq`` is the number of the activity's command. Locks the chain. Raises ``WorkflowClosed``,
        ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``).
        """
        return RunRequest("fail_activity", by, inputs(seq=seq, message=message, type=type, reason=reason))

    afail_activity = async_method(fail_activity)

    @operation_method
    def skip_timer(self, seq: int, *, reason: str = "", by: Person | None = None) -> RunRequest[None]:
        """Let a timer of the run fire now. ``seq`` is the number of the command that started it.

        Locks the chain. Raises ``WorkflowClosed``, ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``).
        """
        return RunRequest("skip_timer", by, inputs(seq=seq, reason=reason))

    askip_timer = async_method(skip_timer)

    @operation_method
    def redeliver(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> RunRequest[None]:
        """Send a failed message to the run once more, after the messages that wait.

        ``id`` is the id of the message, see ``describe().failed_messages``; None sends all of them. Locks the chain.
        Raises ``WorkflowClosed``, ``UpdateTimeout`` (code ``busy``), and ``ActionNotPossible`` if there is no such
        message.
        """
        return RunRequest("redeliver", by, inputs(message=_unless_none(id), reason=reason))

    aredeliver = async_method(redeliver)

    @operation_method
    def discard(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> RunRequest[None]:
        """Discard a failed message; it is not delivered again, even if it is sent again with the same id.

        ``id`` is the id of the message, see ``describe().failed_messages``; None discards all of them. The run may be
        closed. Locks the chain. Raises ``UpdateTimeout`` (code ``busy``), and ``ActionNotPossible`` if there is no such
        message.
        """
        return RunRequest("discard", by, inputs(message=_unless_none(id), reason=reason))

    adiscard = async_method(discard)

    @operation_method
    def delete(self, reason: str = "", *, by: Person | None = None) -> RunRequest[None]:
        """Delete a closed run with all runs of its chain, their histories and messages; the audit log is kept.

        Raises ``ActionNotPossible`` while the run is open.
        """
        return RunRequest("delete", by, inputs(reason=reason))

    adelete = async_method(delete)

    # -- reading -------------------------------------------------------------------------------------------------------

    @operation_method
    def instance(self, *, by: Person | None = None) -> RunRequest[Any]:
        """Return the state of a graph as an ``Instance`` of the pure engine, computed from the history of the run.

        The instance has the context and the execution history. Raises ``UnknownWorkflow`` if this process lacks the
        class, or if the run is not a graph.
        """
        return RunRequest("instance", by)

    ainstance = async_method(instance)

    @operation_method
    def describe(self, *, by: Person | None = None) -> RunRequest[Description]:
        """Return the present state of the run: its status, what it is waiting for, and its open activities.

        If no live worker can process the run or one of its activities, ``waiting_for`` names the worker that is
        missing.
        """
        return RunRequest("describe", by)

    adescribe = async_method(describe)

    @operation_method
    def history(self, *, by: Person | None = None) -> RunRequest[list[HistoryEvent]]:
        """Return the events of the newest run, or of the run whose id the handle was made with."""
        return RunRequest("history", by)

    ahistory = async_method(history)

    @property
    def run_id(self) -> str:
        """The id of the newest run, or the run id that the handle was made with."""
        return self._backend.perform(self._address, RunRequest("run_id"))

    @property
    def run_ids(self) -> list[str]:
        """The ids of all runs of the chain, oldest first."""
        return self._backend.perform(self._address, RunRequest("run_ids"))

    @property
    def status(self) -> str:
        """The status of the run, such as "running" or "completed", as ``describe`` returns it."""
        return self.describe().status


def make_handle(address: RunAddress, backend: Backend) -> WorkflowHandle[Any]:
    """Return the handle of the run at ``address``, whose requests ``backend`` performs.

    Use it where the run may live in another backend than the one that the application uses.
    """
    handle: WorkflowHandle[Any] = WorkflowHandle.__new__(WorkflowHandle)
    handle._backend, handle._address = backend, address  # noqa: SLF001 - of this module
    return handle


def _unless_none(value: Any) -> Any:
    """Return ``UNSET`` for None, so that the operation uses its own default."""
    return UNSET if value is None else value


def _point(to: int | None, messages: str, edited: Any) -> dict[str, Any]:
    """Return the inputs of a reset or a fork without those that are None, for which the operation has defaults."""
    return inputs(to=_unless_none(to), messages=_unless_none(messages), edited=_unless_none(edited))
