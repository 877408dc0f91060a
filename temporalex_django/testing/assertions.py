"""Assertions about runs that say, when they fail, what is the case instead. Any handle will do."""

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
from temporalex_django.errors import WorkflowCancelled, WorkflowFailed
from temporalex_django.graph.durable.activities import activity_of
from temporalex_django.graph.steps import Step, StepRef, key_of
from temporalex_django.testing.handles import EnvironmentHandle

_UNSAID: Final[Any] = object()
_Waits = Mapping[str, Any]


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
    """The run is open and waits for all that is named, among others.

    ``timer`` is what ``api.sleep(…, then=…)`` says, or the label of a phase or the key of a step that gives up in time;
    ``signal`` and ``update`` are messages that would be taken now; ``event`` and ``step`` are of a graph; ``activity``
    has no result yet; ``child`` is a class, or the id of a run; ``human_task`` is the title or the key of what people
    are asked. ``until`` is when one of these, or any wait, is over. Raises ``AssertionError`` with what it waits for
    instead, ``TypeError`` when nothing is named.
    """
    wanted = {
        "timer": timer,
        "signal": signal,
        "update": update,
        "event": event,
        "step": step if step is None or isinstance(step, str) else key_of(step),
        "activity": None if activity is None else _name_of(activity),
        "child": child if child is None or isinstance(child, str) else child.name,
        "human_task": human_task,
        "until": until,
    }
    asked = {name: value for name, value in wanted.items() if value is not None}
    if not asked:
        raise TypeError(f"assert_waiting_for: say for what, with one of {', '.join(wanted)}")
    now, waits = handle.describe(), _waits_of(handle)
    for name, value in asked.items():
        if now.status in CLOSED_STATUSES or not _TESTS[name](value, waits, now):
            raise AssertionError(f"{_run(now)} does not wait for {_named(name, value)}; {_instead(handle, now, waits)}")


def assert_completed(handle: WorkflowHandle[Any], result: Any = _UNSAID) -> None:
    """The run completed, with ``result`` where one is given."""
    now = _ended(handle, "completed")
    if result is not _UNSAID and (found := handle.result(timeout=0)) != result:
        raise AssertionError(f"{_run(now)} completed with {found!r}, not with {result!r}")


def assert_failed(handle: WorkflowHandle[Any], type: str | None = None, match: str | None = None) -> None:
    """The run failed, with an error of that type whose message has a place that the regular expression matches."""
    now = _ended(handle, "failed")
    try:
        handle.result(timeout=0)
    except WorkflowFailed as exc:
        found, said = exc.type, str(exc)
    else:
        raise AssertionError(f"{_run(now)} failed, and gives a result")
    if type is not None and found != type:
        raise AssertionError(f"{_run(now)} failed with {found}, not with {type}: {said}")
    if match is not None and re.search(match, said) is None:
        raise AssertionError(f"{_run(now)} failed, and its error does not match {match!r}: {said}")


def assert_cancelled(handle: WorkflowHandle[Any]) -> None:
    """The run ended cancelled."""
    _ended(handle, "cancelled")


def assert_blocked(handle: WorkflowHandle[Any], code: str | None = None) -> None:
    """The run cannot go on, for the reason of that code (``nondeterminism``, ``unknown_workflow`` …)."""
    now = handle.describe()
    if now.blocked is None:
        raise AssertionError(f"{_run(now)} is not blocked; {_instead(handle, now, _waits_of(handle))}")
    if code is not None and now.blocked["code"] != code:
        raise AssertionError(f"{_run(now)} is blocked by {now.blocked['code']}, not by {code}: {now.blocked['error']}")


# -- tests, by the name of the argument --------------------------------------------------------------------------------


def _timer(value: str, waits: list[_Waits], now: Description) -> bool:
    timed = (wait for wait in waits if wait.get("until"))
    return any(value in (wait.get("then"), wait.get("label"), wait.get("name")) for wait in timed)


def _signal(value: str, waits: list[_Waits], now: Description) -> bool:
    return value in now.accepts["signals"] or any(w["kind"] == "signal" and w.get("name") == value for w in waits)


def _update(value: str, waits: list[_Waits], now: Description) -> bool:
    return value in now.accepts["updates"]


def _event(value: str, waits: list[_Waits], now: Description) -> bool:
    return any(value in wait.get("events", ()) for wait in waits)


def _step(value: str, waits: list[_Waits], now: Description) -> bool:
    running = f"step {value}"
    return any(said == running or said.startswith(f"{running}:") for said in now.waiting_for)


def _activity(value: str, waits: list[_Waits], now: Description) -> bool:
    return any(open_one.activity == value for open_one in now.activities)


def _child(value: str, waits: list[_Waits], now: Description) -> bool:
    return any(wait["kind"] == "child" and value in (wait.get("name"), wait.get("id")) for wait in waits)


def _human_task(value: str, waits: list[_Waits], now: Description) -> bool:
    asking = (wait for wait in waits if wait["kind"] in ("human_task", "step"))
    return any(value in (wait.get("label"), wait.get("name")) for wait in asking)


def _until(value: datetime, waits: list[_Waits], now: Description) -> bool:
    return any(datetime.fromisoformat(wait["until"]) == value for wait in waits if wait.get("until"))


_TESTS: Mapping[str, Callable[[Any, list[_Waits], Description], bool]] = {
    "timer": _timer,
    "signal": _signal,
    "update": _update,
    "event": _event,
    "step": _step,
    "activity": _activity,
    "child": _child,
    "human_task": _human_task,
    "until": _until,
}


# -- what is the case --------------------------------------------------------------------------------------------------


def _waits_of(handle: WorkflowHandle[Any]) -> list[_Waits]:
    if isinstance(handle, EnvironmentHandle):
        return list(handle.shown.waits)
    from temporalex_django.models import Instance  # noqa: PLC0415 - a handle of the tables: Django is there

    return list(Instance.objects.values_list("waits", flat=True).get(pk=handle.run_id) or ())


def _ended(handle: WorkflowHandle[Any], status: str) -> Description:
    now = handle.describe()
    if now.status != status:
        raise AssertionError(f"{_run(now)} is not {status}; {_instead(handle, now, _waits_of(handle))}")
    return now


def _instead(handle: WorkflowHandle[Any], now: Description, waits: list[_Waits]) -> str:
    if now.status in CLOSED_STATUSES:
        return f"it is closed: {now.status}{_how(handle)}"
    if now.blocked is not None:
        return f"it is blocked ({now.blocked['code']}): {now.blocked['error']}"
    if now.paused is not None:
        return "it is paused"
    if now.status == "pending":
        return "no worker has taken it yet: let the environment work (env.advance())"
    said = [*(_about(wait) for wait in waits), *(_open(one) for one in now.activities)]
    found = "; ".join(dict.fromkeys(said)) or ", ".join(now.waiting_for)
    return f"it waits for {found}" if found else f"it is {now.status}"


def _how(handle: WorkflowHandle[Any]) -> str:
    try:
        return f", with {handle.result(timeout=0)!r}"
    except (WorkflowFailed, WorkflowCancelled) as exc:
        return f", {exc}"


def _about(wait: _Waits) -> str:
    parts = [str(wait["kind"]).replace("_", " ")]
    parts += [repr(wait[name]) for name in ("name", "then", "label") if wait.get(name)]
    for name, before in (("events", "taking "), ("labels", "taking ")):
        if wait.get(name):
            parts.append(before + ", ".join(wait[name]))
    if wait.get("until"):
        parts.append(f"until {wait['until']}")
    return " ".join(parts)


def _open(one: OpenActivity) -> str:
    why = ""
    if one.last_failure is not None:
        why = f", tried {one.attempt} times, next at {one.due_at.isoformat(timespec='seconds')}: {one.last_failure.message}"
    return f"activity {one.activity}{why}"


def _named(name: str, value: Any) -> str:
    kind = name.replace("_", " ")
    return f"anything {kind} {value.isoformat()}" if isinstance(value, datetime) else f"{kind} {value!r}"


def _run(now: Description) -> str:
    return f"{now.workflow} {now.id}"


def _name_of(activity: Activity[Any, Any] | StepRef | str) -> str:
    if isinstance(activity, str):
        return activity
    of_a_step = isinstance(activity, (Step, type))
    return activity_of(activity).name if of_a_step else activity.name  # type: ignore[arg-type,union-attr] # by of_a_step
