"""The retry policy of activities, as a pure function: it says after which pause an attempt follows, if any."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalex_django.core.names import to_seconds
from temporalex_django.errors import WorkflowDefinitionError

#: Longest pause between two attempts in seconds, unless a policy allows more.
_LONGEST = 100.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of attempts of an activity and the pauses between them.

    ``max_attempts`` 0 or None means no limit. The pause before attempt n + 1 is
    ``initial_interval * backoff ** (n - 1)``, and at most ``max_interval`` (None: 100 seconds, or
    ``initial_interval`` if that is longer). ``non_retryable`` lists exception classes or class names that end the
    retries at once. Durations are timedeltas or seconds. Raises ``WorkflowDefinitionError`` for values that make no
    sense.
    """

    max_attempts: int | None = None
    initial_interval: timedelta | float = 1.0
    backoff: float = 2.0
    max_interval: timedelta | float | None = None
    non_retryable: Sequence[str | type[BaseException]] = ()

    def __post_init__(self) -> None:
        errors = []
        if self.max_attempts is not None and (type(self.max_attempts) is not int or self.max_attempts < 0):
            errors.append(f"max_attempts={self.max_attempts!r} is not a whole number of 0 or more")
        for name in ("initial_interval", "max_interval"):
            if name == "max_interval" and self.max_interval is None:
                continue
            try:
                if to_seconds(getattr(self, name), label=name) < 0:
                    errors.append(f"{name}={getattr(self, name)!r} is negative")
            except (TypeError, ValueError) as exc:
                errors.append(str(exc))
        if (
            isinstance(self.backoff, bool)
            or not isinstance(self.backoff, (int, float))
            or not 1 <= self.backoff < math.inf
        ):
            errors.append(f"backoff={self.backoff!r} is not a number of 1 or more")
        if isinstance(self.non_retryable, (str, type)):
            errors.append("non_retryable must be a list of exception classes or names")
        if errors:
            raise WorkflowDefinitionError("RetryPolicy: " + "; ".join(errors))

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as it is stored with an activity: durations in seconds, 0 for no limit of attempts."""
        initial_interval = to_seconds(self.initial_interval)
        return {
            "max_attempts": self.max_attempts or 0,
            "initial_interval": initial_interval,
            "backoff": float(self.backoff),
            "max_interval": max(_LONGEST, initial_interval)
            if self.max_interval is None
            else to_seconds(self.max_interval),
            "non_retryable": [n if isinstance(n, str) else n.__name__ for n in self.non_retryable],
        }


_UNLIMITED = RetryPolicy().as_dict()


def next_delay(policy: dict[str, Any] | None, attempt: int, error_types: Sequence[str]) -> float | None:
    """Return the seconds until the attempt after ``attempt`` (counted from 1), or None if there is none.

    ``policy`` is the dict of ``RetryPolicy.as_dict``, or None for the default policy, which has no limit.
    ``error_types`` are the class names of the exception and its bases.
    """
    policy = policy or _UNLIMITED
    if policy["max_attempts"] and attempt >= policy["max_attempts"]:
        return None
    # Names, not classes: the attempt may have failed in another process, and the history stores names alone.
    if not set(policy["non_retryable"]).isdisjoint(error_types):
        return None
    # The exponent is capped: attempt 5000 of an unlimited policy must not overflow a float.
    return float(min(policy["initial_interval"] * policy["backoff"] ** min(attempt - 1, 64), policy["max_interval"]))
