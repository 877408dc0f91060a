"""Start policies: what a start does about other runs with its id."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from temporalex_django.errors import AlreadyEnded, InvalidStart

#: What a start does if an open run has the id.
OnConflict = Literal["fail", "use_existing", "terminate_existing"]
#: Whether a start is possible if runs with the id have ended.
OnClosed = Literal["allow", "failed_only", "reject"]
#: What a start did: it started a run, returned the open one, or started one in the place of an open one.
StartOutcome = Literal["started", "existing", "replaced"]

#: The reason with which ``terminate_existing`` terminates a run.
REPLACED: Final = "replaced by a start with on_conflict='terminate_existing'"


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
        raise InvalidStart(f"{label} must be one of {words}, not {value!r}")


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
