"""``WorkflowHandle``: the operations on a run from outside, wherever the run lives.

One contract with an implementation for each host: ``client.DatabaseHandle`` and ``testing.handles.EnvironmentHandle``.
They implement the plain methods. The twins for async code, with the prefix ``a``, are written once here; a host
overrides only those that it does differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, Self, cast, overload

from temporalex_django.authoring import backend
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.backend import Description
from temporalex_django.authoring.human_tasks import OpenHumanTask
from temporalex_django.authoring.type_hints import R, Result_co, TypedWorkflow
from temporalex_django.core.history.events import HistoryEvent

if TYPE_CHECKING:
    from uuid import UUID

    from temporalex_django.authoring.start_api import Startable

#: Default waits in seconds: for the answer of an update, resume or decision, and for a result.
ANSWER_TIMEOUT: Final = 10.0
RESULT_TIMEOUT: Final = 30.0
#: Default of ``input``: the arguments stay as they are. None would be a valid input.
UNCHANGED: Final[Any] = object()


class WorkflowHandle(Generic[Result_co]):
    """A business execution: the newest chain of a business id, or one particular chain.

    A handle that ``start`` returned, or that was made with a run id, belongs to the chain of that run. Making a handle
    reads nothing. ``workflow`` limits the search to one class, which the scopes ``workflow`` and ``version`` need. A
    method raises ``WorkflowNotFound`` if there is no such run. It raises ``AmbiguousId`` if several workflows used the
    id and not exactly one of them has an open run.

    ``by`` is the user in whose name a method acts; None means code, which may do everything. The user is recorded in
    the audit and in messages. The handler decides who may send a message (``permission=``, or the role of an approval).
    All other methods need the permission of the operation (``temporalex_django.cancel_instance`` …). They raise
    ``ActionNotPermitted`` without it, and write nothing then.
    """

    # Not an ABC, because type checkers must let code write `WorkflowHandle(id)`. The methods that raise
    # NotImplementedError are the contract; tests/contract/test_handles.py checks that each host implements all of them.
    id: str
    chain_id: UUID | None

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """Make a handle of the class that belongs to the bound backend, as ``pathlib.Path`` does for its systems.

            Raises ``NotConfigured``.
            """
            return object.__new__(backend.bound_backend().handle_class if cls is WorkflowHandle else cls)

    @overload
    def __init__(
        self: WorkflowHandle[R], id: str | UUID, *, workflow: type[TypedWorkflow[Any, R]], chain_id: UUID | None = None
    ) -> None: ...
    @overload
    def __init__(
        self, id: str | UUID, *, workflow: type[Startable] | None = None, chain_id: UUID | None = None
    ) -> None: ...
    def __init__(self, id: str | UUID, *, workflow: Any = None, chain_id: UUID | None = None) -> None:
        self.id = str(id)
        self.chain_id = chain_id
        self._workflow: type[Startable] | None = workflow

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.id!r}>"

    # -- messages ------------------------------------------------------------------------------------------------------

    def signal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        """Send a signal.

        It is one INSERT on the caller's connection, and commits or rolls back with the caller's transaction. With an
        ``id`` it is safe to send the signal again: the run gets it once. If the handler has a ``permission``, ``by`` is
        checked when the signal is dispatched; a refused signal leaves only an audit row. Raises ``WorkflowClosed``,
        ``PayloadError``, ``InvalidId``; nothing is written then.
        """
        raise NotImplementedError

    def update(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        """Send an update and return its answer; see ``operations.runs.update`` for where it runs and what it locks.

        With an ``id`` it is safe to send the update again: you get its first outcome. ``timeout`` is in seconds.
        ``mode`` "worker" leaves the turn to a worker. If the connection to the database breaks while the update is
        sent, nobody knows whether it was stored. ``UpdateTimeout`` with the code ``unknown`` is raised then; ask again
        with its ``update_id``.

        Raises ``UpdateRejected``, ``WorkflowClosed``, ``UpdateFailed``, ``UpdateTimeout`` and ``PayloadError``. Raises
        ``ActionNotPermitted`` if ``by`` lacks the ``permission`` of the handler.
        """
        raise NotImplementedError

    def resume(
        self,
        event: str,
        step: Any = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        """Give a graph the event that one of its steps waits for.

        ``data`` is stored under the step's key, with the person who decided (``by``). ``step`` (a step, or its key)
        selects the step if several wait for the event. A plain name as ``by`` is recorded, and has no role. Runs and
        waits as ``update`` does.

        Raises ``ResumeRefused`` if no step or several steps match, and ``ActionNotPermitted`` if ``by`` lacks the role
        of the step. Raises ``WorkflowClosed``, ``PayloadError`` and ``UpdateTimeout``, too. Nothing changes then.
        """
        raise NotImplementedError

    def human_tasks(self, *, by: Person | None = None) -> list[OpenHumanTask]:
        """Return the open human tasks of the run, oldest first; for a user, those that they may see."""
        raise NotImplementedError

    def decide(
        self,
        outcome: str,
        *,
        task: str | None = None,
        data: Any = None,
        comment: str = "",
        by: Person | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        """Decide a human task of the run in the name of a user.

        ``task`` is its key, id or title; leave it out if exactly one is open. ``data`` are the data that its form asks
        for. Runs and waits as ``update`` does. Raises ``HumanTaskNotFound``, ``HumanTaskClosed`` with what happened
        instead, ``HumanTaskClaimed``, ``ActionNotPermitted``, ``FourEyes``, ``PayloadError``, ``RunPaused`` and
        ``UpdateTimeout``. Nothing changes then.
        """
        raise NotImplementedError

    def query(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """Return the answer to a query, computed from the published state.

        ``fresh`` delivers unread messages first. Raises ``UnknownQuery``, ``QueryFailed``, and ``UnknownWorkflow`` if
        this process lacks the class.
        """
        raise NotImplementedError

    # -- result and end ------------------------------------------------------------------------------------------------

    def result(self, timeout: float | None = RESULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        """Wait for the result and return it, through continue-as-new.

        ``timeout`` is in seconds; None waits for ever. Inside a transaction it checks once and does not wait. Raises
        ``WorkflowFailed`` (or its subclasses ``WorkflowTerminated`` and ``WorkflowTimedOut``), ``WorkflowCancelled``
        and ``ResultTimeout``.
        """
        raise NotImplementedError

    def cancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """Ask the run to cancel, by an INSERT as in ``signal``; a graph is cancelled at once.

        Raises ``WorkflowClosed``.
        """
        raise NotImplementedError

    def terminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """Close the run at once, in the caller's transaction and without running any of its code.

        Locks the chain. Raises ``WorkflowClosed``.
        """
        raise NotImplementedError

    # -- reset and fork ------------------------------------------------------------------------------------------------

    def reset(
        self,
        to: int | None = None,
        *,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> str:
        """Reset the run to the point after its activation ``to`` (0: its start).

        A new run of the chain continues from there; its id is returned. The old run is closed as terminated
        (``reset``). Without ``to`` the run must be blocked or closed. The point is then after the last activation that
        the code replays as recorded and that did not close the run.

        ``messages`` that came after the point are delivered "again", or dropped with "drop". ``edited`` gives
        activities that were open at the point other arguments: ``{number: [argument, …]}``. Locks the chain, in the
        caller's transaction. Raises ``ActionNotPossible``, ``PayloadError``, ``UpdateTimeout``.
        """
        raise NotImplementedError

    def fork(
        self,
        to: int | None = None,
        *,
        id: str | None = None,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> WorkflowHandle[Result_co]:
        """Start a run with the history of this one up to ``to`` and return its handle; this run stays as it is.

        Everything else is as in ``reset``. ``id`` is the id of the new run, and is derived from the id of this one by
        default. Raises ``InvalidId`` and ``AlreadyRunning``, too.
        """
        raise NotImplementedError

    # -- operations ----------------------------------------------------------------------------------------------------

    def pause(self, reason: str = "", *, by: Person | None = None) -> None:
        """Pause the run: none of its code runs until ``unpause``; see ``operations.runs.pause``.

        Locks the chain. Raises ``WorkflowClosed``, ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``).
        """
        raise NotImplementedError

    def unpause(self, reason: str = "", *, by: Person | None = None) -> None:
        """Continue a paused run, with everything that came meanwhile. Raises and locks as ``pause`` does."""
        raise NotImplementedError

    def try_again(self, reason: str = "", *, by: Person | None = None) -> None:
        """Try a blocked run once more now, without waiting for its back-off.

        A run that ended its workers is tried on one worker, separately from other runs. Raises and locks as ``pause``
        does; ``ActionNotPossible`` if the run is not blocked, or is paused.
        """
        raise NotImplementedError

    def retry_activity(self, seq: int, *, input: Any = UNCHANGED, reason: str = "", by: Person | None = None) -> None:
        """Try a failed activity again now, without waiting for its back-off.

        ``seq`` is the number of its command. ``input`` (a list of arguments, or an object of them by name) replaces its
        arguments, and gives it a new idempotency key. Raises and locks as ``pause`` does, and raises ``PayloadError``
        for an input that does not fit.
        """
        raise NotImplementedError

    def complete_activity(self, seq: int, result: Any = None, *, reason: str = "", by: Person | None = None) -> None:
        """End an activity with a result; the result of an attempt under way comes too late then.

        For a step of a graph the result is ``{"event": name, "data": …}``. Raises and locks as ``pause`` does, and
        raises ``PayloadError`` for a result that does not fit its annotation.
        """
        raise NotImplementedError

    def fail_activity(
        self, seq: int, message: str, *, type: str = "FailedByHand", reason: str = "", by: Person | None = None
    ) -> None:
        """End an activity as failed, without a further attempt, with an error of that type and message.

        Raises and locks as ``pause`` does.
        """
        raise NotImplementedError

    def skip_timer(self, seq: int, *, reason: str = "", by: Person | None = None) -> None:
        """Let a timer fire now. ``seq`` is the number of the command that started it.

        Raises and locks as ``pause`` does.
        """
        raise NotImplementedError

    def redeliver(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        """Send a failed message to the run once more, after the messages that wait.

        ``id`` is the id of the message, see ``describe().failed_messages``; None sends all of them. Raises
        ``ActionNotPossible`` if there is none, and raises and locks as ``pause`` does.
        """
        raise NotImplementedError

    def discard(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        """Discard a failed message; it is not delivered again.

        ``id`` has the same meaning as in ``redeliver``. Raises ``ActionNotPossible`` if there is no such message;
        otherwise raises the same errors and takes the same locks as ``pause``.
        """
        raise NotImplementedError

    def delete(self, reason: str = "", *, by: Person | None = None) -> None:
        """Delete a closed run with all runs of its chain, their histories and messages; the audit stays.

        Raises ``ActionNotPossible`` while the run is open.
        """
        raise NotImplementedError

    # -- reading -------------------------------------------------------------------------------------------------------

    def instance(self, *, by: Person | None = None) -> Any:
        """Return a graph as an instance of the pure engine, computed from its history.

        The instance has the context and the execution history. Raises ``UnknownWorkflow`` if this process lacks the
        class, or the run is no graph.
        """
        raise NotImplementedError

    def describe(self, *, by: Person | None = None) -> Description:
        """Return the present state of the run.

        If no live worker can process the run or one of its activities, ``waiting_for`` names the worker that is
        missing.
        """
        raise NotImplementedError

    def history(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """Return the events of the newest run, or of the run whose id the handle was made with."""
        raise NotImplementedError

    @property
    def run_id(self) -> str:
        """The id of the newest run, or the run id that the handle was made with."""
        raise NotImplementedError

    @property
    def run_ids(self) -> list[str]:
        """The ids of all runs of the chain, oldest first."""
        raise NotImplementedError

    @property
    def status(self) -> str:
        """The status of the run that ``describe`` returns."""
        return self.describe().status

    # -- async ---------------------------------------------------------------------------------------------------------

    async def _from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call ``call(*args, **options)`` from async code and return its result."""
        raise NotImplementedError

    async def asignal(self, name: str, payload: Any = None, *, id: str | None = None, by: Person | None = None) -> None:
        """``signal`` for async code."""
        await self._from_async(self.signal, name, payload, id=id, by=by)

    async def aupdate(
        self,
        name: str,
        args: Any = None,
        *,
        id: str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
        mode: str = "auto",
        by: Person | None = None,
    ) -> Any:
        """``update`` for async code."""
        return await self._from_async(self.update, name, args, id=id, timeout=timeout, mode=mode, by=by)

    async def aresume(
        self,
        event: str,
        step: Any = None,
        data: Any = None,
        *,
        by: Person | str | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        """``resume`` for async code."""
        await self._from_async(self.resume, event, step, data, by=by, timeout=timeout)

    async def ahuman_tasks(self, *, by: Person | None = None) -> list[OpenHumanTask]:
        """``human_tasks`` for async code."""
        return cast("list[OpenHumanTask]", await self._from_async(self.human_tasks, by=by))

    async def adecide(
        self,
        outcome: str,
        *,
        task: str | None = None,
        data: Any = None,
        comment: str = "",
        by: Person | None = None,
        timeout: float | None = ANSWER_TIMEOUT,
    ) -> None:
        """``decide`` for async code."""
        await self._from_async(self.decide, outcome, task=task, data=data, comment=comment, by=by, timeout=timeout)

    async def aquery(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """``query`` for async code."""
        return await self._from_async(self.query, name, args, fresh=fresh, by=by)

    async def aresult(self, timeout: float | None = RESULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        """``result`` for async code."""
        return cast("Result_co", await self._from_async(self.result, timeout, by=by))

    async def acancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """``cancel`` for async code."""
        await self._from_async(self.cancel, reason, by=by)

    async def aterminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """``terminate`` for async code."""
        await self._from_async(self.terminate, reason, by=by)

    async def areset(
        self,
        to: int | None = None,
        *,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> str:
        """``reset`` for async code."""
        return cast(
            "str", await self._from_async(self.reset, to, messages=messages, edited=edited, reason=reason, by=by)
        )

    async def afork(
        self,
        to: int | None = None,
        *,
        id: str | None = None,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> WorkflowHandle[Result_co]:
        """``fork`` for async code."""
        handle = await self._from_async(self.fork, to, id=id, messages=messages, edited=edited, reason=reason, by=by)
        return cast("WorkflowHandle[Result_co]", handle)

    async def apause(self, reason: str = "", *, by: Person | None = None) -> None:
        """``pause`` for async code."""
        await self._from_async(self.pause, reason, by=by)

    async def aunpause(self, reason: str = "", *, by: Person | None = None) -> None:
        """``unpause`` for async code."""
        await self._from_async(self.unpause, reason, by=by)

    async def atry_again(self, reason: str = "", *, by: Person | None = None) -> None:
        """``try_again`` for async code."""
        await self._from_async(self.try_again, reason, by=by)

    async def aretry_activity(
        self, seq: int, *, input: Any = UNCHANGED, reason: str = "", by: Person | None = None
    ) -> None:
        """``retry_activity`` for async code."""
        await self._from_async(self.retry_activity, seq, input=input, reason=reason, by=by)

    async def acomplete_activity(
        self, seq: int, result: Any = None, *, reason: str = "", by: Person | None = None
    ) -> None:
        """``complete_activity`` for async code."""
        await self._from_async(self.complete_activity, seq, result, reason=reason, by=by)

    async def afail_activity(
        self, seq: int, message: str, *, type: str = "FailedByHand", reason: str = "", by: Person | None = None
    ) -> None:
        """``fail_activity`` for async code."""
        await self._from_async(self.fail_activity, seq, message, type=type, reason=reason, by=by)

    async def askip_timer(self, seq: int, *, reason: str = "", by: Person | None = None) -> None:
        """``skip_timer`` for async code."""
        await self._from_async(self.skip_timer, seq, reason=reason, by=by)

    async def aredeliver(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        """``redeliver`` for async code."""
        await self._from_async(self.redeliver, id, reason=reason, by=by)

    async def adiscard(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        """``discard`` for async code."""
        await self._from_async(self.discard, id, reason=reason, by=by)

    async def adelete(self, reason: str = "", *, by: Person | None = None) -> None:
        """``delete`` for async code."""
        await self._from_async(self.delete, reason, by=by)

    async def ainstance(self, *, by: Person | None = None) -> Any:
        """``instance`` for async code."""
        return await self._from_async(self.instance, by=by)

    async def adescribe(self, *, by: Person | None = None) -> Description:
        """``describe`` for async code."""
        return cast("Description", await self._from_async(self.describe, by=by))

    async def ahistory(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """``history`` for async code."""
        return cast("list[HistoryEvent]", await self._from_async(self.history, by=by))
