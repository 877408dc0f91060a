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
    def from_state(cls, task: HumanTaskState, id: str) -> OpenHumanTask:
        spec = task.spec
        return cls(
            id=id,
            key=task.key,
            title=spec.title,
            outcomes=spec.outcomes,
            asked=task.candidates,
            opened_at=task.opened_at,
            due_at=task.due_at,
            reminders=task.reminders,
            escalated_at=task.escalated_at,
            four_eyes=spec.four_eyes,
            form=None if spec.form is None else spec.form.as_dict(),
            shows=spec.shows,
            happened=task.outcome_text if task.ending else "",
        )


def select_task(tasks: Sequence[OpenHumanTask], selector: str | None, *, run: str) -> OpenHumanTask:
    """Which one somebody means by its key, id or title, or as the only one that is open.

    Raises ``HumanTaskNotFound``, and ``HumanTaskClosed`` with what happened.
    """
    matches = [task for task in tasks if selector is None or selector in (task.key, task.id, task.title)]
    open_tasks = [task for task in matches if not task.happened]
    if len(open_tasks) == 1:
        return open_tasks[0]
    if open_tasks:
        choices = ", ".join(f"{task.key!r} ({task.title})" for task in open_tasks)
        raise HumanTaskNotFound(f"{run} asks for several decisions: name one by task=, of {choices}")
    if matches:
        raise HumanTaskClosed(
            f"{run}: the human task {matches[-1].title!r} is not open any more: {matches[-1].happened}"
        )
    raise HumanTaskNotFound(f"{run} asks for no decision" + ("" if selector is None else f" {selector[:200]!r}"))


def require_outcome(task: OpenHumanTask, outcome: object) -> None:
    """Raises ``PayloadError``."""
    if outcome not in task.outcomes:
        raise PayloadError(f"the human task {task.title!r} takes {', '.join(task.outcomes)}, not {outcome!r}")


def clean_form_data(form: Mapping[str, Any] | None, data: Any, *, title: str) -> dict[str, Any]:
    """What a form that is judged before the turn makes of the data, with its name. Raises ``PayloadError``."""
    if form is None or form["kind"] != "form":
        return {"data": data}
    label = f"the data for the human task {title!r}"
    return {"data": forms.clean_data(form["name"], data, label=label), "judged": form["name"]}


def base_key(key: str) -> str:
    """What the run itself calls a task: where a step asks again, only the end of the key differs."""
    return key.partition("#")[0]
