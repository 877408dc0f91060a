"""Start policies: what a start does about other runs with its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from temporalex_django.core.names import is_name, quoted, wait_seconds
from temporalex_django.errors import AlreadyEnded, InvalidStart

#: What a start does if an open run has the id.
OnConflict = Literal["fail", "use_existing", "terminate_existing"]
#: Whether a start is possible if runs with the id have ended.
OnClosed = Literal["allow", "failed_only", "reject"]
#: What a start did: it started a run, returned the open one, started one in the place of an open one, or replaced the
#: input of one that has not begun.
StartOutcome = Literal["started", "existing", "replaced", "debounced"]
#: Most runs that a throttle lets begin in its window; it keeps a time for each.
MAX_THROTTLE: Final = 1000
#: The longest period of a throttle, in seconds.
LONGEST_THROTTLE = 31 * 86_400.0

#: The reason with which ``terminate_existing`` terminates a run.
REPLACED: Final = "replaced by a start with on_conflict='terminate_existing'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """A limit of starts: at most ``count`` runs begin in any period of ``seconds``; further runs begin later.

    Runs with the same ``key`` share the limit. Without a key, all throttled starts of the class share it.
    """

    count: int
    seconds: float
    key: str | None = None

    def name_for(self, workflow: str) -> str:
        """Return the name of the row that stores when the last throttled runs of the class ``workflow`` begin.

        Each count and period has a row of its own, so a caller with another limit cannot delay the starts of this one.
        """
        name = f"start:{workflow}:{self.count}/{self.seconds:g}"
        return name if self.key is None else f"{name}:{self.key}"

    def next_begin(self, times: Sequence[float], now: float) -> tuple[float, list[float]]:
        """Return the time at which the next run may begin, and the updated list of begin times to store.

        ``times`` are those at which the last runs begin. All times are in seconds since 1970, and lists have the oldest
        first.
        """
        recent = sorted(times)[-self.count :]
        begin = now
        if len(recent) == self.count:
            begin = max(now, recent[0] + self.seconds)
        return begin, sorted([*recent, begin])[-self.count :]

    def as_limit(self) -> dict[str, Any]:
        """Return the limit as a dict with ``count`` and ``seconds``, as it is stored with a run that begins later."""
        return {"count": self.count, "seconds": self.seconds}


def parse_throttle(value: Any, *, label: str) -> Throttle:
    """Return the throttle that a caller passed: ``(count, period)`` or ``(count, period, key)``.

    The period is a timedelta or a number of seconds. ``label`` names the start in errors. Raises ``InvalidStart``.
    """
    parts = [*value] if isinstance(value, (tuple, list)) else []
    if len(parts) not in (2, 3):
        raise InvalidStart(f"{label}: throttle must be (count, period) or (count, period, key), not {quoted(value)}")
    count, period, key = (*parts, None)[:3]
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_THROTTLE:
        raise InvalidStart(
            f"{label}: the count of throttle must be a whole number from 1 to {MAX_THROTTLE}, not {quoted(count)}"
        )
    if key is not None and not is_name(key):
        raise InvalidStart(
            f"{label}: the key of throttle must be a string of 1 to 200 printable characters, not {quoted(key)}"
        )
    seconds = _positive_seconds(period, label=f"{label}: the period of throttle")
    if seconds > LONGEST_THROTTLE:
        raise InvalidStart(f"{label}: the period of throttle must be at most 31 days")
    return Throttle(count=count, seconds=seconds, key=key)


def check_debounce(value: Any, *, label: str) -> None:
    """Raise ``InvalidStart`` unless ``value`` is a positive timedelta or number of seconds.

    ``label`` names the start.
    """
    _positive_seconds(value, label=f"{label}: debounce")


def _positive_seconds(value: Any, *, label: str) -> float:
    try:
        seconds = wait_seconds(value, label=label)
    except (TypeError, ValueError) as exc:
        raise InvalidStart(str(exc)) from None
    if not seconds:
        raise InvalidStart(f"{label} must be longer than 0 seconds")
    return seconds


def check_start_policy(on_conflict: str, on_closed: str, *, label: str) -> None:
    """Raise ``InvalidStart`` if one of the policies does not exist, or if they contradict each other.

    ``label`` names the start in the message.
    """
    _check(on_conflict, get_args(OnConflict), label=f"{label}: on_conflict")
    _check(on_closed, get_args(OnClosed), label=f"{label}: on_closed")
    # The run that is terminated has ended then, so nothing could take its place.
    if on_conflict == "terminate_existing" and on_closed == "reject":
        raise InvalidStart(
            f"{label}: on_closed='reject' forbids the run that on_conflict='terminate_existing' would start: "
            "use on_closed='failed_only' or 'allow'"
        )


def _check(value: object, choices: tuple[Any, ...], *, label: str) -> None:
    if value not in choices:
        words = ", ".join(repr(choice) for choice in choices)
        raise InvalidStart(f"{label} must be one of {words}, not {quoted(value)}")


def require_reusable(status: str | None, on_closed: str, *, workflow: str, workflow_id: str) -> None:
    """Raise ``AlreadyEnded`` if the policy allows no start with an id whose last run has ended with ``status``.

    None as status means that no run with the id has ended. A run without a result of its own counts as failed: it may
    be cancelled, terminated or timed out, too.
    """
    if status is None or on_closed == "allow":
        return
    if on_closed == "failed_only" and status != "completed":
        return
    raise AlreadyEnded(
        f"{workflow} {workflow_id!r} has ended ({status}), and on_closed={on_closed!r} allows no other run: "
        "use another id, or another on_closed"
    )
