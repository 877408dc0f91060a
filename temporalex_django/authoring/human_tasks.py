"""Human tasks as handles give them, and which of them is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from temporalex_django.authoring import forms
from temporalex_django.core.human_tasks import HumanTaskState
from temporalex_django.errors import HumanTaskClosed, HumanTaskNotFound, PayloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHumanTask:
    """What a run asks people. ``asked`` are words for who may decide: ``user:``, ``group:`` or ``perm:`` and a name.

    ``four_eyes``: the scope in which somebody else has to decide, chain or run; "" without four eyes. ``form``: kind,
    name, schema and digest of what the data are to be. ``shows``: what people decide about, beside the title.
    ``happened``: of one that is not open any more.
    """

    id: str
    key: str
    title: str
    outcomes: Sequence[str]
    asked: Sequence[str]
    opened_at: datetime
    due_at: datetime | None = None
    reminders: int = 0
    escalated_at: datetime | None = None
    four_eyes: str = ""
    form: Mapping[str, Any] | None = None
    shows: Any = None
    claimed_by: str = ""
    claimed_until: datetime | None = None
    happened: str = ""

    @classmethod
    def of(cls, task: HumanTaskState, id: str) -> OpenHumanTask:
        asking = task.spec
        return cls(
            id=id,
            key=task.key,
            title=asking.title,
            outcomes=asking.outcomes,
            asked=task.candidates,
            opened_at=task.opened_at,
            due_at=task.due_at,
            reminders=task.reminders,
            escalated_at=task.escalated_at,
            four_eyes=asking.four_eyes,
            form=None if asking.form is None else asking.form.as_dict(),
            shows=asking.shows,
            happened=task.outcome_text if task.ending else "",
        )


def meant(tasks: Sequence[OpenHumanTask], wanted: str | None, *, run: str) -> OpenHumanTask:
    """Which one somebody means by its key, id or title, or as the only one that is open.

    Raises ``HumanTaskNotFound``, and ``HumanTaskClosed`` with what happened.
    """
    named = [one for one in tasks if wanted is None or wanted in (one.key, one.id, one.title)]
    found = [one for one in named if not one.happened]
    if len(found) == 1:
        return found[0]
    if found:
        which = ", ".join(f"{one.key!r} ({one.title})" for one in found)
        raise HumanTaskNotFound(f"{run} asks for several decisions: name one by task=, of {which}")
    if named:
        raise HumanTaskClosed(f"{run}: the human task {named[-1].title!r} is not open any more: {named[-1].happened}")
    raise HumanTaskNotFound(f"{run} asks for no decision" + ("" if wanted is None else f" {wanted[:200]!r}"))


def require_outcome(task: OpenHumanTask, outcome: object) -> None:
    """Raises ``PayloadError``."""
    if outcome not in task.outcomes:
        raise PayloadError(f"the human task {task.title!r} takes {', '.join(task.outcomes)}, not {outcome!r}")


def judged(form: Mapping[str, Any] | None, data: Any, *, title: str) -> dict[str, Any]:
    """What a form that is judged before the turn makes of the data, with its name. Raises ``PayloadError``."""
    if form is None or form["kind"] != "form":
        return {"data": data}
    what = f"the data for the human task {title!r}"
    return {"data": forms.cleaned(form["name"], data, what=what), "judged": form["name"]}


def step_of(key: str) -> str:
    """What the run itself calls a task: where a step asks again, only the end of the key differs."""
    return key.partition("#")[0]
