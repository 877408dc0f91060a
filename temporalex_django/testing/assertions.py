"""Assertions about the state of runs, for any handle. When they fail, they report what the run does instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from temporalex_django.authoring.activity import Activity
from temporalex_django.authoring.backend import Description, OpenActivity
from temporalex_django.authoring.handle import WorkflowHandle
from temporalex_django.authoring.start_api import Startable
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import counted
from temporalex_django.errors import WorkflowCancelled, WorkflowFailed
from temporalex_django.graph.durable_run import activity_of
from temporalex_django.graph.steps import Step, StepRef, key_of
from temporalex_django.testing.environment_base import EnvironmentHandle

_UNSET: Final[Any] = object()
_Wait = Mapping[str, Any]


def assert_waiting_for(
    handle: WorkflowHandle[Any],
    *,
    timer: str | None = None,
    signal: str | None = None,
    update: str | None = None,
    event: str | None = None,
    step: StepRef | str | None = None,
    activity: Activity[Any, Any] | StepRef | str | None = None,
    child: type[Startable] | str | None = None,
    human_task: str | None = None,
    until: datetime | None = None,
) -> None:
    """Assert that the run is open and waits for everything that is named; it may wait for other things as well.

    - ``timer``: the ``then`` of ``api.sleep(…, then=…)``, the label of a phase, or the key of a step with a timeout.
    - ``signal``, ``update``: the name of a message that the run would take now.
    - ``event``, ``step``: the event that a step of a graph waits for; a step (or its key) that waits or runs.
    - ``activity``: an activity, or its name, that has no result yet.
    - ``child``: a class or its name, or the id of a run.
    - ``human_task``: the title or the key of a human task.
    - ``until``: the time at which one of these, or any wait, ends.

    Raises ``AssertionError`` with what the run is waiting for instead, and ``TypeError`` when nothing is named.
    """
    arguments = {
        "timer": timer,
        "signal": signal,
        "update": update,
        "event": event,
        "step": step if step is None or isinstance(step, str) else key_of(step),
        "activity": None if activity is None else _activity_name(activity),
        "child": child if child is None or isinstance(child, str) else child.name,
        "human_task": human_task,
        "until": until,
    }
    criteria = {name: value for name, value in arguments.items() if value is not None}
    if not criteria:
        raise TypeError(f"assert_waiting_for: pass at least one of {', '.join(arguments)}")
    # The structured waits are not part of the description, so they are read beside it.
    description, waits = handle.describe(), _waits_of(handle)
    for name, value in criteria.items():
        if description.status in CLOSED_STATUSES or not _PREDICATES[name](value, waits, description):
            raise AssertionError(
                f"{_run_name(description)} does not wait for {_criterion_text(name, value)}; {_actual_state(handle, description, waits)}"
            )


def assert_completed(handle: WorkflowHandle[Any], result: Any = _UNSET) -> None:
    """Assert that the run completed. If ``result`` is passed, assert that the run returned an equal value."""
    description = _require_status(handle, "completed")
    if result is not _UNSET and (actual_result := handle.result(timeout=0)) != result:
        raise AssertionError(f"{_run_name(description)} completed with {actual_result!r}, not with {result!r}")


def assert_failed(handle: WorkflowHandle[Any], type: str | None = None, match: str | None = None) -> None:
    """Assert that the run failed.

    ``type`` is the class name of the error; None accepts any error. ``match`` is a regular expression that is searched
    in the message of the error.
    """
    description = _require_status(handle, "failed")
    try:
        handle.result(timeout=0)
    except WorkflowFailed as exc:
        error_type, error_text = exc.type, str(exc)
    else:
        raise AssertionError(f"{_run_name(description)} failed, but its handle returned a result")
    if type is not None and error_type != type:
        raise AssertionError(f"{_run_name(description)} failed with {error_type}, not with {type}: {error_text}")
    if match is not None and re.search(match, error_text) is None:
        raise AssertionError(f"{_run_name(description)} failed, and its error does not match {match!r}: {error_text}")


def assert_cancelled(handle: WorkflowHandle[Any]) -> None:
    """Assert that the run ended as cancelled."""
    _require_status(handle, "cancelled")


def assert_blocked(handle: WorkflowHandle[Any], code: str | None = None) -> None:
    """Assert that the run is blocked.

    ``code`` is the code of the reason (``nondeterminism``, ``unknown_workflow`` …); None accepts any reason.
    """
    description = handle.describe()
    if description.blocked is None:
        raise AssertionError(
            f"{_run_name(description)} is not blocked; {_actual_state(handle, description, _waits_of(handle))}"
        )
    if code is not None and description.blocked["code"] != code:
        raise AssertionError(
            f"{_run_name(description)} is blocked by {description.blocked['code']}, not by {code}: {description.blocked['error']}"
        )


# -- predicates, by the name of the argument ---------------------------------------------------------------------------


def _has_timer(value: str, waits: list[_Wait], description: Description) -> bool:
    timed = (wait for wait in waits if wait.get("until"))
    return any(value in (wait.get("then"), wait.get("label"), wait.get("name")) for wait in timed)


def _can_take_signal(value: str, waits: list[_Wait], description: Description) -> bool:
    # Outside of phases, code takes a signal by waiting for it.
    return value in description.accepts["signals"] or any(
        w["kind"] == "signal" and w.get("name") == value for w in waits
    )


def _can_take_update(value: str, waits: list[_Wait], description: Description) -> bool:
    return value in description.accepts["updates"]


def _has_event(value: str, waits: list[_Wait], description: Description) -> bool:
    return any(value in wait.get("events", ()) for wait in waits)


def _has_step(value: str, waits: list[_Wait], description: Description) -> bool:
    # A step that runs is "step KEY"; one that waits is "step KEY: EVENTS".
    prefix = f"step {value}"
    return any(text == prefix or text.startswith(f"{prefix}:") for text in description.waiting_for)


def _has_activity(value: str, waits: list[_Wait], description: Description) -> bool:
    return any(open_activity.activity == value for open_activity in description.activities)


def _has_child(value: str, waits: list[_Wait], description: Description) -> bool:
    return any(wait["kind"] == "child" and value in (wait.get("name"), wait.get("id")) for wait in waits)


def _has_human_task(value: str, waits: list[_Wait], description: Description) -> bool:
    task_waits = (wait for wait in waits if wait["kind"] in ("human_task", "step"))
    return any(value in (wait.get("label"), wait.get("name")) for wait in task_waits)


def _has_deadline(value: datetime, waits: list[_Wait], description: Description) -> bool:
    return any(datetime.fromisoformat(wait["until"]) == value for wait in waits if wait.get("until"))


_PREDICATES: Mapping[str, Callable[[Any, list[_Wait], Description], bool]] = {
    "timer": _has_timer,
    "signal": _can_take_signal,
    "update": _can_take_update,
    "event": _has_event,
    "step": _has_step,
    "activity": _has_activity,
    "child": _has_child,
    "human_task": _has_human_task,
    "until": _has_deadline,
}


# -- the actual state --------------------------------------------------------------------------------------------------


def _waits_of(handle: WorkflowHandle[Any]) -> list[_Wait]:
    """Return the waits of a run as data, each a ``core.typed_dicts.WaitInfo``."""
    if isinstance(handle, EnvironmentHandle):
        return list(handle.selected_run.waits)
    from temporalex_django.models import Instance  # noqa: PLC0415 - only handles of the database get here

    return list(Instance.objects.values_list("waits", flat=True).get(pk=handle.run_id) or ())


def _require_status(handle: WorkflowHandle[Any], status: str) -> Description:
    """Return the description of a run with this status. Raises ``AssertionError`` if it has another one."""
    description = handle.describe()
    if description.status != status:
        raise AssertionError(
            f"{_run_name(description)} is not {status}; {_actual_state(handle, description, _waits_of(handle))}"
        )
    return description


def _actual_state(handle: WorkflowHandle[Any], description: Description, waits: list[_Wait]) -> str:
    """Return the state of a run in words, for the message of an assertion that fails."""
    if description.status in CLOSED_STATUSES:
        return f"it is closed: {description.status}{_result_text(handle)}"
    if description.blocked is not None:
        return f"it is blocked ({description.blocked['code']}): {description.blocked['error']}"
    if description.paused is not None:
        return "it is paused"
    if description.status == "pending":
        return "no worker has picked it up yet: call env.advance()"
    parts = [*(_wait_text(wait) for wait in waits), *(_activity_text(activity) for activity in description.activities)]
    # Two units may wait for the same thing: name it once.
    waits_text = "; ".join(dict.fromkeys(parts)) or ", ".join(description.waiting_for)
    return f"it waits for {waits_text}" if waits_text else f"it is {description.status}"


def _result_text(handle: WorkflowHandle[Any]) -> str:
    try:
        return f", with {handle.result(timeout=0)!r}"
    except (WorkflowFailed, WorkflowCancelled) as exc:
        return f", {exc}"


def _wait_text(wait: _Wait) -> str:
    parts = [str(wait["kind"]).replace("_", " ")]
    parts += [repr(wait[name]) for name in ("name", "then", "label") if wait.get(name)]
    for name, prefix in (("events", "accepting "), ("labels", "accepting ")):
        if wait.get(name):
            parts.append(prefix + ", ".join(wait[name]))
    if wait.get("until"):
        parts.append(f"until {wait['until']}")
    return " ".join(parts)


def _activity_text(activity: OpenActivity) -> str:
    failure_text = ""
    if activity.last_failure is not None:
        failure_text = f", tried {counted(activity.attempt, 'time', 'times')}, next at {activity.due_at.isoformat(timespec='seconds')}: {activity.last_failure.message}"
    return f"activity {activity.activity}{failure_text}"


def _criterion_text(name: str, value: Any) -> str:
    kind = name.replace("_", " ")
    return f"anything {kind} {value.isoformat()}" if isinstance(value, datetime) else f"{kind} {value!r}"


def _run_name(description: Description) -> str:
    return f"{description.workflow} {description.id}"


def _activity_name(activity: Activity[Any, Any] | StepRef | str) -> str:
    if isinstance(activity, str):
        return activity
    is_step = isinstance(activity, (Step, type))
    return activity_of(activity).name if is_step else activity.name  # type: ignore[arg-type,union-attr] # by is_step
