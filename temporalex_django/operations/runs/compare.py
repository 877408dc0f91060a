"""Compare the inputs in the history of a run with those that the present code produces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from temporalex_django import access
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.backends.host import host
from temporalex_django.backends.protocol import RunTarget, find_run_class, runs_in_workers_only
from temporalex_django.backends.routing import backend_of
from temporalex_django.backends.tables import inline_turn
from temporalex_django.conf import get_settings
from temporalex_django.core.history import replay
from temporalex_django.core.history.events import HistoryEvent, ReplayDifference
from temporalex_django.engine.watchdog import watchdog
from temporalex_django.errors import ActionNotPossible, NondeterminismError, TemporalexError
from temporalex_django.models import Instance
from temporalex_django.operations.base import CODE, Actor
from temporalex_django.operations.run_lookup import RunAction

#: Number of events for which a replay gets one more second.
REPLAYED_PER_SECOND = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InputComparison:
    """A difference between an input in a history and the one that the present code produces.

    ``recorded`` and ``produced`` are the two values, redacted for the user. ``difference`` says where they differ.
    """

    difference: ReplayDifference
    recorded: Any
    produced: Any


class CompareInputs(RunAction[Sequence[InputComparison]]):
    """Operation that replays a run with the code of this process and returns the inputs and durations that differ.

    Nothing is written. The replay may take ``DEADLOCK_TIMEOUT`` seconds, and one second more for every ten thousand
    events, but at most ``LEASE_SECONDS``. Raises ``ActionNotPossible`` if this process lacks the code, if the code may
    run only in workers (``updates_in``), or if it does not match the history.
    """

    name: ClassVar[str] = "compare"
    permission: ClassVar[str] = "view_payload"

    def __init__(self, target: RunTarget, *, by: Actor = CODE) -> None:
        super().__init__(by=by)
        self.target = target

    @classmethod
    def why_not(cls, run: Instance) -> str | None:
        """Return the text that says why this process cannot replay the run, or None if it can."""
        code = find_run_class(run.chain_id, run.workflow, run.version)
        if code is None:
            message = _(
                "this process does not have the class {workflow} (version {version}), so it cannot replay the run"
            )
        elif runs_in_workers_only(code):
            message = _("only workers run the code of {workflow} (updates_in): use the command “temporalex replay”")
        else:
            return None
        return str(format_lazy(message, workflow=run.workflow, version=run.version))

    def perform(self) -> Sequence[InputComparison]:
        run_id = self.target.selected_run_id
        if (reason := self.why_not(self.row)) is not None:
            raise ActionNotPossible(reason)
        code = host().find_class(self.target.chain_id, self.target.workflow, self.target.version)
        redactor = access.redactor_for(self.by.user, self.row)
        events = backend_of(self.target).history(self.target, storage=self.storage)
        limit = replay_limit(len(events), maximum=get_settings().LEASE_SECONDS)
        run_with_limit = partial(watchdog.run, limit=limit, label=f"run {run_id}")
        try:
            # The replay runs code of users, which may end this process: the marker says which run did (see decision
            # 22).
            with inline_turn.crash_marker(self.storage).record_work("run", run_id):
                differences = replay.replay(code.definition, events, run=run_with_limit)
        except NondeterminismError as exc:
            raise ActionNotPossible(
                f"the history does not match the code: {redactor.redact_text(exc.message)}"
            ) from exc
        except TemporalexError as exc:
            raise ActionNotPossible(f"the replay failed: {redactor.redact_text(exc.message)}") from exc
        except Exception as exc:  # noqa: BLE001 - the code of the run may raise anything
            error = type(exc).__name__
            raise ActionNotPossible(
                f"the code raised {error} during the replay ({redactor.redact_text(str(exc))})"
            ) from None
        return [_build_comparison(difference, events[difference.event - 1], redactor) for difference in differences]


def replay_limit(events: int, *, maximum: float | None = None) -> float | None:
    """Return the number of seconds that the replay of ``events`` events may take, at most ``maximum``.

    If the setting ``DEADLOCK_TIMEOUT`` is off, this is ``maximum``. None means that there is no limit.
    """
    limit = get_settings().DEADLOCK_TIMEOUT
    if limit is None:
        return maximum
    limit += events / REPLAYED_PER_SECOND
    if maximum is None:
        return limit
    return min(limit, maximum)


def _build_comparison(difference: ReplayDifference, event: HistoryEvent, redactor: Redactor) -> InputComparison:
    """Convert a difference to an ``InputComparison`` with two redacted values.

    They are redacted as the history redacts the input of ``event``, the event at which the inputs differ.
    """
    if difference.kind == "duration":
        return InputComparison(difference=difference, recorded=difference.recorded, produced=difference.produced)
    recorded, produced = (
        _redact_payload(payload, difference.keys, event, redactor)
        for payload in (difference.recorded, difference.produced)
    )
    return InputComparison(difference=difference, recorded=recorded, produced=produced)


def _redact_payload(payload: Any, keys: Sequence[str | int], event: HistoryEvent, redactor: Redactor) -> Any:
    """Redact ``payload``, the part of the input of ``event`` at the path ``keys``, as the whole input is redacted."""
    # Redaction goes by paths of names. Rebuild the path around the value, redact it, and take the value out again.
    names = [key for key in keys if isinstance(key, str)]
    for name in reversed(names):
        payload = {name: payload}
    attributes = {**event.attributes, "args": payload, "kwargs": {}}
    redacted_payload = redactor.redact_attributes(attributes, kind=event.kind)["args"]
    for name in names:
        if not isinstance(redacted_payload, Mapping) or name not in redacted_payload:
            # A parent of the value was hidden or redacted: show its replacement.
            break
        redacted_payload = redacted_payload[name]
    return redacted_payload
