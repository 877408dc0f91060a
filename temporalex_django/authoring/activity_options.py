"""Options of activities that repeat: retries, and keys of which only one is open."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from temporalex_django.authoring.foreign_options import RETRY_POLICY, UNIQUE, answers_foreign_arguments
from temporalex_django.core.failures import failure_types, is_error, requested_pause, retry_request
from temporalex_django.core.names import quoted, to_seconds, type_advice
from temporalex_django.errors import InvalidId, OutsideWorkflow, WorkflowDefinitionError

# --- retry ------------------------------------------------------------------------------------------------------------
#
# The retry policy of activities, as pure functions: they say after which pause an attempt follows, if any.


#: Longest pause between two attempts in seconds, unless a policy allows more.
_LONGEST = 100.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@answers_foreign_arguments("RetryPolicy", RETRY_POLICY)
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of attempts of an activity and the pauses between them.

    ``max_attempts`` 0 or None means no limit. The pause before attempt n + 1 is
    ``initial_interval * backoff ** (n - 1)``, and at most ``max_interval`` (None: 100 seconds, or
    ``initial_interval`` if that is longer). ``non_retryable`` lists exception classes or class names that end the
    retries at once. Durations are timedeltas or seconds.

    ``jitter`` is the largest fraction of a pause, from 0 to 1, by which it is shortened, so that activities which
    failed together are not tried again together. With 0.2, a pause of 10 seconds lasts between 8 and 10 seconds.

    An activity can name the time of its next attempt by ``RetryLater``. Raises ``WorkflowDefinitionError`` for values
    that make no sense.
    """

    max_attempts: int | None = None
    initial_interval: timedelta | float = 1.0
    backoff: float = 2.0
    max_interval: timedelta | float | None = None
    non_retryable: Sequence[str | type[BaseException]] = ()
    jitter: float = 0.0

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
        if not _is_number(self.backoff) or not 1 <= self.backoff < math.inf:
            errors.append(f"backoff={self.backoff!r} is not a number of 1 or more")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            errors.append(f"jitter={self.jitter!r} is not a fraction from 0 to 1")
        if isinstance(self.non_retryable, (str, type)):
            errors.append("non_retryable must be a list of exception classes or names")
        if errors:
            raise WorkflowDefinitionError("RetryPolicy: " + "; ".join(errors))

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as it is stored with an activity: durations in seconds, 0 for no limit of attempts."""
        initial_interval = to_seconds(self.initial_interval)
        # Left out without jitter: the histories of older code lack it.
        jitter = {"jitter": float(self.jitter)} if self.jitter else {}
        return {
            "max_attempts": self.max_attempts or 0,
            "initial_interval": initial_interval,
            "backoff": float(self.backoff),
            "max_interval": max(_LONGEST, initial_interval)
            if self.max_interval is None
            else to_seconds(self.max_interval),
            "non_retryable": [n if isinstance(n, str) else n.__name__ for n in self.non_retryable],
            **jitter,
        }


_UNLIMITED = RetryPolicy().as_dict()


def next_delay(
    policy: dict[str, Any] | None, attempt: int, error_types: Sequence[str], *, draw: float = 0.0
) -> float | None:
    """Return the seconds until the attempt after ``attempt`` (counted from 1), or None if there is none.

    ``policy`` is the dict of ``RetryPolicy.as_dict``, or None for the default policy, which has no limit.
    ``error_types`` are the class names of the exception and its bases. ``draw`` is a number from 0 to 1, the share of
    the jitter that shortens the pause.
    """
    policy = policy or _UNLIMITED
    # Names, not classes: the attempt may have failed in another process, and the history stores names alone.
    if _is_last(policy, attempt) or not set(policy["non_retryable"]).isdisjoint(error_types):
        return None
    return _pause(policy, attempt, draw)


def delay_after(
    policy: dict[str, Any] | None, attempt: int, error: BaseException, *, now: datetime, draw: float = 0.0
) -> float | None:
    """Return the seconds from ``now`` until the attempt after one that raised ``error``, or None if none follows.

    The arguments are those of ``next_delay``. ``RetryLater`` names the pause itself. If it names none, the ``backoff``
    of a Django task decides, or else the policy. Its ``non_retryable`` does not count then, because the code itself
    wants another attempt. No attempt follows one that called what only workflow code may call, such as another
    activity.
    """
    # A mistake in the code: no attempt of this activity can call what only workflow code may call.
    if is_error(error, OutsideWorkflow):
        return None
    request, pause = retry_request(error), requested_pause(error)
    if request is None and pause is None:
        return next_delay(policy, attempt, failure_types(error), draw=draw)
    policy = policy or _UNLIMITED
    if (request is None or request.counts) and _is_last(policy, attempt):
        return None
    seconds = None if request is None else request.seconds_from(now)
    if seconds is None and pause is not None:
        return pause[0]
    return _pause(policy, attempt, draw) if seconds is None else seconds


def jitter_draw(*attempt: object) -> float:
    """Return the share (0 to 1) of the jitter that shortens the pause after an attempt, made of its identity.

    The arguments identify the attempt. The numbers are spread evenly over attempts. One attempt always has the same
    number, so tests can rely on it.
    """
    digest = hashlib.blake2b(":".join(map(str, attempt)).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48


def _is_last(policy: dict[str, Any], attempt: int) -> bool:
    return bool(policy["max_attempts"]) and attempt >= policy["max_attempts"]


def _pause(policy: dict[str, Any], attempt: int, draw: float) -> float:
    # The exponent is capped: attempt 5000 of an unlimited policy must not overflow a float.
    pause = min(policy["initial_interval"] * policy["backoff"] ** min(attempt - 1, 64), policy["max_interval"])
    return float(pause * (1 - policy.get("jitter", 0.0) * draw))


# --- unique -----------------------------------------------------------------------------------------------------------
#
# ``Unique``: the business key of a workflow class, which makes ids of runs from values such as order numbers.


Scope = Literal["workflow", "version", "global", "none"]
SEPARATOR = "::"
# Neither pattern allows ":", so an id can always be split into its parts again.
_KEY = re.compile(r"[a-z0-9]+")
_VALUE = re.compile(r"[a-z0-9]+|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SUFFIX = re.compile(r"[0-9a-f]{8}")
_LONGEST_WINDOW = 200


@answers_foreign_arguments("Unique", UNIQUE)
@dataclass(frozen=True, slots=True)
class Unique:
    """The business key of a class: its runs have the id ``key::value``.

    A value consists of lower-case letters and digits, such as "42" or "acme42", or is a UUID. Nothing else is allowed,
    no hyphens and no capitals, so that two spellings of a value cannot be two runs. The page "Choose ids" shows what to
    do with other values, such as those with the prefix of a tenant.

    ``scope`` is the set of runs of which at most one with the same id may be open: "workflow" (all runs of the class),
    "version" (those of one version) or "global" (all runs). With "none" any number may be open.
    """

    key: str
    scope: Scope = "workflow"

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not _KEY.fullmatch(self.key):
            raise WorkflowDefinitionError(f"Unique: the key {self.key!r} must be lower-case letters and digits")
        if self.scope not in get_args(Scope):
            raise WorkflowDefinitionError(
                f"Unique: the scope {self.scope!r} must be one of {', '.join(get_args(Scope))}"
            )

    def id_for(self, value: object) -> str:
        """Return the id ``key::value``.

        Raises ``InvalidId`` unless the value consists of lower-case letters and digits, or is a UUID.
        """
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise InvalidId(
                f"the value {quoted(value)} for {self.key!r} must be lower-case letters and digits, or a UUID"
                f"{type_advice(value) or _advice(value)}"
            )
        return f"{self.key}{SEPARATOR}{value}"

    def run_id_for(self, value: object, suffix: Callable[[], str]) -> str:
        """Return the business id of a new run with that value. Raises ``InvalidId``.

        With scope ``none`` several runs share a value, so ``suffix()`` (8 hex digits) is added to distinguish them.
        """
        business_id = self.id_for(value)
        return check_id(f"{business_id}{SEPARATOR}{suffix()}" if self.scope == "none" else business_id)

    def check(self, id: str) -> str:
        """Return ``id`` if it has the form of an id that this class makes from a value.

        A start by id is checked in this way, so that it cannot avoid the rules for values. Raises ``InvalidId``.
        """
        parts = id.split(SEPARATOR) if isinstance(id, str) else []
        suffixed = len(parts) == 3 and self.scope == "none" and _SUFFIX.fullmatch(parts[2])
        if not suffixed and (len(parts) != 2 or self.scope == "none"):
            raise InvalidId(f"{id!r} is not an id of the form {self.key}{SEPARATOR}value: start it with a value")
        self.value_of(id)
        return check_id(id)

    def value_of(self, id: str) -> str:
        """Return the value in an id ``key::value`` or ``key::value::suffix``. Raises ``InvalidId`` for any other id."""
        parts = id.split(SEPARATOR) if isinstance(id, str) else []
        if len(parts) not in (2, 3) or parts[0] != self.key or not _VALUE.fullmatch(parts[1]):
            raise InvalidId(f"{id!r} is not an id of the form {self.key}{SEPARATOR}value")
        return parts[1]


def _advice(value: object) -> str:
    """Return what to pass instead of a text that is no value."""
    plain = "".join(c for c in str(value).lower() if c.isascii() and c.isalnum())
    example = f"{plain!r} if no other value reads like it, or " if plain else ""
    return (
        f": write {example}str(uuid5(NAMESPACE_URL, value)); a class without `unique` takes any id. "
        'See the page "Choose ids"'
    )


def check_id(value: object) -> str:
    """Return ``value`` if it can be a business id: 1 to 200 printable characters without ``/``.

    Raises ``InvalidId``.
    """
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_WINDOW or not value.isprintable() or "/" in value:
        raise InvalidId(
            f"{quoted(value)} is not a valid id: "
            f"use 1 to {_LONGEST_WINDOW} printable characters without '/'{type_advice(value)}"
        )
    return value
