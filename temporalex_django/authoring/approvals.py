"""What code says of an approval: what is asked, of whom, and what happens while nobody decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalex_django.authoring.people import word_of
from temporalex_django.core import names
from temporalex_django.core.durations import wait_seconds
from temporalex_django.core.four_eyes import parse_scope
from temporalex_django.core.human_tasks import OVERDUE, HumanTaskSpec, build_form_spec
from temporalex_django.errors import WorkflowDefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """``after`` so long (a timedelta or seconds) these may decide as well: see ``api.approval`` for who."""

    after: timedelta | float
    role: str | None = None
    users: Sequence[str] = ()
    groups: Sequence[str] = ()


def asking(
    title: str,
    *,
    called: str,
    what: str,
    role: str | None,
    users: Sequence[str],
    groups: Sequence[str],
    outcomes: Sequence[str],
    four_eyes: bool | str,
    form: Any,
    remind: timedelta | float | None,
    escalate: Escalation | None,
    due: bool,
    shows: Any = None,
) -> HumanTaskSpec:
    """What code says, checked. Raises ``WorkflowDefinitionError``."""
    scope = parse_scope(four_eyes)
    if scope is None:
        raise WorkflowDefinitionError(f"{what}: four_eyes must be True or False, 'chain' or 'run', not {four_eyes!r}")
    if escalate is not None and not isinstance(escalate, Escalation):
        raise WorkflowDefinitionError(f"{what}: escalate must be an Escalation, not {escalate!r}")
    after: float | None = None
    others: tuple[str, ...] = ()
    if escalate is not None:
        after = positive(escalate.after, what=f"{what}: escalate.after")
        others = words_for(f"{what}: escalate", escalate.role, escalate.users, escalate.groups)
        if not others:
            raise WorkflowDefinitionError(f"{what}: escalate names nobody: give it a role, users or groups")
    return HumanTaskSpec(
        title=title,
        label=called,
        candidates=words_for(what, role, users, groups),
        outcomes=_outcomes(what, outcomes, due=due),
        four_eyes=scope,
        form=None if form is None else _form(what, form),
        remind=None if remind is None else positive(remind, what=f"{what}: remind"),
        escalate_after=after,
        escalation_candidates=others,
        shows=shows,
    )


def words_for(what: str, role: str | None, users: Sequence[str], groups: Sequence[str]) -> tuple[str, ...]:
    """Who is named, as words (see ``people.answers_to``). Raises ``WorkflowDefinitionError``."""
    if role is not None and not (isinstance(role, str) and role and names.is_name(role)):
        raise WorkflowDefinitionError(
            f"{what}: role must be a permission (app.codename) or the name of a group, not {role!r}"
        )
    found = [] if role is None else [word_of(role)]
    for kind, given in (("user", users), ("group", groups)):
        if isinstance(given, str) or not isinstance(given, Sequence) or not all(map(names.is_name, given)):
            wanted = "usernames" if kind == "user" else "names of groups"
            raise WorkflowDefinitionError(f"{what}: {kind}s must be a list of {wanted}, not {given!r}")
        found += [f"{kind}:{name}" for name in given]
    return tuple(dict.fromkeys(found))


def positive(value: Any, *, what: str) -> float:
    """A duration in seconds that is not zero. Raises ``WorkflowDefinitionError``."""
    try:
        found = wait_seconds(value, label=what)
    except (TypeError, ValueError) as exc:
        raise WorkflowDefinitionError(str(exc)) from None
    if not found:
        raise WorkflowDefinitionError(f"{what} must be longer than nothing")
    return found


def _outcomes(what: str, outcomes: Sequence[str], *, due: bool) -> tuple[str, ...]:
    if isinstance(outcomes, str) or not isinstance(outcomes, Sequence) or not outcomes:
        raise WorkflowDefinitionError(f"{what}: outcomes must be a list of names, not {outcomes!r}")
    found = tuple(str.__str__(names.check_code_name(one, label=f"{what}: an outcome")) for one in outcomes)
    if len(set(found)) < len(found):
        raise WorkflowDefinitionError(f"{what}: outcomes has one twice: {', '.join(found)}")
    if due and OVERDUE in found:
        raise WorkflowDefinitionError(f"{what}: an outcome {OVERDUE!r} cannot be told from what comes when it is due")
    return found


def _form(what: str, form: Any) -> Any:
    try:
        return build_form_spec(form, what)
    except TypeError:  # what cannot be hashed is no type either
        raise WorkflowDefinitionError(f"{what}: form must be a type or a dotted path, not {form!r}") from None
