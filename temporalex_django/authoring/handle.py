"""``WorkflowHandle``: what can be done with a run from outside, wherever it lives.

One contract with an implementation for each host: ``client.DatabaseHandle``, ``testing.handles.EnvironmentHandle``.
They do the plain methods; the ``a``-prefixed twins are written once, here, for those that need no way of their own.
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

#: Seconds to wait for the answer of an update or a resume, and for a result.
ANSWER_TIMEOUT: Final = 10.0
RESULT_TIMEOUT: Final = 30.0
#: Stands for an input that stays what it is.
UNCHANGED: Final[Any] = object()


class WorkflowHandle(Generic[Result_co]):
    """A business execution.

    The newest chain of a business id, or the one that ``start`` gave or that a run id belongs to.

    Making one asks nobody. ``workflow`` narrows the search to one class, which scopes ``workflow`` and ``version``
    need. What a method raises when there is no such run is ``WorkflowNotFound``; when several workflows used the id and
    not exactly one of them has an open run, ``AmbiguousId``.

    ``by`` of each method is the user in whose name it happens (None: code, which may do everything): it is audited and
    told. Who may send a message is for the handler to say (``permission=``, the role of an approval); everything else
    takes the permission of the operation (``temporalex_django.cancel_instance`` …). Raises ``ActionNotPermitted``;
    nothing is written then.
    """

    # Not an ABC: to type checkers the class is one that code makes. What raises NotImplementedError is the contract:
    # that each kind implements all of it is tested (tests/contract/test_handles.py).
    id: str
    chain_id: UUID | None

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Self:
            """Of the kind that belongs to where runs live, as ``pathlib.Path`` does it. Raises ``NotConfigured``."""
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
        """Send a signal: one INSERT on the caller's connection, which commits or vanishes with his transaction.

        ``id`` makes it safe to send again: the run gets it once. A handler with a ``permission`` judges ``by`` when the
        signal is dispatched; one that is refused leaves an audit row alone. Raises ``WorkflowClosed``,
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
        """Send an update and give its response; see ``actions.update`` for where it runs and what it locks.

        ``id`` makes it safe to send again: the first outcome is given. ``timeout`` is in seconds. ``mode`` "worker"
        leaves the turn to a worker. When the database goes away while it is sent, nobody knows whether it counts:
        ``UpdateTimeout`` with the code ``unknown`` has the ``update_id`` to ask again with. Raises ``UpdateRejected``,
        ``WorkflowClosed``, ``UpdateFailed``, ``UpdateTimeout``, ``PayloadError``, and ``ActionNotPermitted`` when
        ``by`` lacks the ``permission`` of the handler.
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

        ``data`` goes under the step's key, with who decided (``by``). ``step`` (a step, or its key) says which, where
        several wait for the event. A mere name as ``by`` is noted, and has no role. Runs and waits as ``update`` does.
        Raises ``ResumeRefused`` when none or several match, ``ActionNotPermitted`` when ``by`` lacks the role of the
        step, ``WorkflowClosed``, ``PayloadError``, ``UpdateTimeout``; nothing changes then.
        """
        raise NotImplementedError

    def human_tasks(self, *, by: Person | None = None) -> list[OpenHumanTask]:
        """What the run asks people at present, oldest first; of a person's those that he may see."""
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

        ``task`` is its key, id or title; it may be left out where one is open. ``data`` is what its form wants. Runs
        and waits as ``update`` does. Raises ``HumanTaskNotFound``, ``HumanTaskClosed`` with what happened instead,
        ``HumanTaskClaimed``, ``ActionNotPermitted``, ``FourEyes``, ``PayloadError``, ``RunPaused``,
        ``UpdateTimeout``; nothing changes then.
        """
        raise NotImplementedError

    def query(self, name: str, args: Any = None, *, fresh: bool = True, by: Person | None = None) -> Any:
        """Ask the run's published state. ``fresh`` delivers unread messages first.

        Raises ``UnknownQuery``, ``QueryFailed``, ``UnknownWorkflow`` where the class is missing.
        """
        raise NotImplementedError

    # -- the end -------------------------------------------------------------------------------------------------------

    def result(self, timeout: float | None = RESULT_TIMEOUT, *, by: Person | None = None) -> Result_co:
        """Wait for the result, through continue-as-new; ``timeout`` in seconds, None is for ever.

        In a transaction it looks once. Raises ``WorkflowFailed`` (with ``WorkflowTerminated`` and
        ``WorkflowTimedOut``), ``WorkflowCancelled``, ``ResultTimeout``.
        """
        raise NotImplementedError

    def cancel(self, reason: str = "", *, by: Person | None = None) -> None:
        """Ask the run to cancel: an INSERT like ``signal``; a graph is cancelled at once. Raises ``WorkflowClosed``."""
        raise NotImplementedError

    def terminate(self, reason: str = "", *, by: Person | None = None) -> None:
        """Close the run at once, in the caller's transaction. Locks the chain. Raises ``WorkflowClosed``."""
        raise NotImplementedError

    # -- again ---------------------------------------------------------------------------------------------------------

    def reset(
        self,
        to: int | None = None,
        *,
        messages: str = "again",
        edited: Any = None,
        reason: str = "",
        by: Person | None = None,
    ) -> str:
        """Take the run back to behind its activation ``to`` (0: the start): a new run of the chain goes on from there.

        Without ``to`` behind the last one that the code goes through as recorded and that did not close the run: of a
        run that is blocked or closed. ``messages`` that came later are delivered "again", or "drop" drops them.
        ``edited`` gives activities that were open there other arguments: ``{number: [argument, …]}``. The old run is
        closed as terminated (``reset``); gives the id of the new one. Locks the chain, in the caller's transaction.
        Raises ``ActionNotPossible``, ``PayloadError``, ``UpdateTimeout``.
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
        """Start a run that has the history of this one up to ``to``; this one stays as it is. Gives its handle.

        All else is as in ``reset``. ``id`` is that of the new run, made of that of this one if it is not given. Raises
        ``InvalidId`` and ``AlreadyRunning``, too.
        """
        raise NotImplementedError

    # -- what operators do -------------------------------------------------------------------------------------------

    def pause(self, reason: str = "", *, by: Person | None = None) -> None:
        """Stop the run where it stands until ``unpause``; see ``actions.pause``.

        Locks the chain. Raises ``WorkflowClosed``, ``ActionNotPossible``, ``UpdateTimeout`` (code ``busy``).
        """
        raise NotImplementedError

    def unpause(self, reason: str = "", *, by: Person | None = None) -> None:
        """Let a paused run go on, with all that came meanwhile. Raises and locks as ``pause`` does."""
        raise NotImplementedError

    def try_again(self, reason: str = "", *, by: Person | None = None) -> None:
        """Try a blocked run once, now, and not at its back-off; one that ended its workers on one worker, alone.

        Raises and locks as ``pause`` does; ``ActionNotPossible`` where the run is not blocked, or is paused.
        """
        raise NotImplementedError

    def retry_activity(self, seq: int, *, input: Any = UNCHANGED, reason: str = "", by: Person | None = None) -> None:
        """Try a failed activity again now, and not at its back-off. ``seq`` is the number of the command.

        ``input`` (a list of arguments, or an object of them by name) is tried instead of what it was given, under a new
        idempotency key. Raises and locks as ``pause`` does, and ``PayloadError`` for an input that does not fit.
        """
        raise NotImplementedError

    def complete_activity(self, seq: int, result: Any = None, *, reason: str = "", by: Person | None = None) -> None:
        """End an activity with a result, in place of whoever runs it: an attempt under way comes too late.

        Of a step of a graph the result is ``{"event": name, "data": …}``. Raises and locks as ``pause`` does, and
        ``PayloadError`` for a result that does not fit its annotation.
        """
        raise NotImplementedError

    def fail_activity(
        self, seq: int, message: str, *, type: str = "FailedByHand", reason: str = "", by: Person | None = None
    ) -> None:
        """End an activity as failed, for good, with an error of that type and message.

        Raises and locks as ``pause`` does.
        """
        raise NotImplementedError

    def skip_timer(self, seq: int, *, reason: str = "", by: Person | None = None) -> None:
        """Let a timer fire now. ``seq`` is the number of the command that started it.

        Raises and locks as ``pause`` does.
        """
        raise NotImplementedError

    def redeliver(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        """Send a signal whose handler failed to the run once more, behind the messages that wait.

        ``id`` is that of the message, see ``describe().failed_messages``; None: all of them. Raises
        ``ActionNotPossible`` where there is none, and raises and locks as ``pause`` does.
        """
        raise NotImplementedError

    def discard(self, id: str | None = None, *, reason: str = "", by: Person | None = None) -> None:
        """Give up a signal whose handler failed: nobody delivers it again.

        ``id`` as in ``redeliver``. Raises ``ActionNotPossible`` where there is none, and raises and locks as ``pause``
        does.
        """
        raise NotImplementedError

    def delete(self, reason: str = "", *, by: Person | None = None) -> None:
        """Delete a closed run, with all runs of its chain, their histories and messages; the audit stays.

        Raises ``ActionNotPossible`` while it is open.
        """
        raise NotImplementedError

    # -- looking -------------------------------------------------------------------------------------------------------

    def instance(self, *, by: Person | None = None) -> Any:
        """A graph as an instance of the pure engine, with context and execution history, computed from its history.

        Raises ``UnknownWorkflow`` when this process does not have the class, or it is no graph.
        """
        raise NotImplementedError

    def describe(self, *, by: Person | None = None) -> Description:
        """The run as it stands; what it waits for includes a worker, when none that is alive can take it."""
        raise NotImplementedError

    def history(self, *, by: Person | None = None) -> list[HistoryEvent]:
        """The events of the newest run, or of the run that the handle was made for by run id."""
        raise NotImplementedError

    @property
    def run_id(self) -> str:
        """Of the newest run, or of the one that the handle was made for by run id."""
        raise NotImplementedError

    @property
    def run_ids(self) -> list[str]:
        """Of all runs of the chain, oldest first."""
        raise NotImplementedError

    @property
    def status(self) -> str:
        """Of the run that ``describe`` shows."""
        return self.describe().status

    # -- async ---------------------------------------------------------------------------------------------------------

    async def _from_async(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """``call(*args, **options)`` for async code."""
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
