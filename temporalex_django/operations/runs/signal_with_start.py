"""Send a signal to the open run of an id, and start the run if there is none."""

from __future__ import annotations

from typing import Any, ClassVar

from temporalex_django import access
from temporalex_django.authoring.requests import StartOutcome, StartRequest
from temporalex_django.backends.protocol import RunTarget
from temporalex_django.errors import AlreadyRunning, WorkflowNotFound
from temporalex_django.operations.base import CODE, Action, Actor
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.signal import SendSignal
from temporalex_django.operations.runs.start import Start


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
