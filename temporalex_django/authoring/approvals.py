"""The arguments of an approval, and the checks that turn them into the spec of a human task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalex_django.authoring.authorization import candidate_of_role
from temporalex_django.authoring.foreign_options import ESCALATION, answers_foreign_arguments
from temporalex_django.core import names
from temporalex_django.core.human_tasks import OVERDUE, HumanTaskSpec, build_form_spec, parse_scope
from temporalex_django.core.names import wait_seconds
from temporalex_django.errors import WorkflowDefinitionError


@answers_foreign_arguments("Escalation", ESCALATION)
@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """More people who may decide an approval when nobody has decided it for a while.

    They may decide as well once the time ``after`` (a timedelta or seconds) has passed. ``role`` is a permission
    ``app.codename`` or a group, ``users`` are usernames, and ``groups`` are names of groups.
    """

    after: timedelta | float
    role: str | None = None
    users: Sequence[str] = ()
    groups: Sequence[str] = ()


def human_task_spec(
    title: str,
    *,
    display_name: str,
    label: str,
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
    """Check the arguments of an approval and return the spec of the human task that it opens.

    ``label`` names the approval in errors of this function, and ``display_name`` in later ones. ``due`` is True if the
    approval has a due time. The other arguments have the same meaning as in ``api.approval``. Raises
    ``WorkflowDefinitionError``.
    """
    scope = parse_scope(four_eyes)
    if scope is None:
        raise WorkflowDefinitionError(f"{label}: four_eyes must be True or False, 'chain' or 'run', not {four_eyes!r}")
    if escalate is not None and not isinstance(escalate, Escalation):
        raise WorkflowDefinitionError(f"{label}: escalate must be an Escalation, not {escalate!r}")
    escalation_delay: float | None = None
    escalation_candidates: tuple[str, ...] = ()
    if escalate is not None:
        escalation_delay = positive_seconds(escalate.after, label=f"{label}: escalate.after")
        escalation_candidates = build_candidates(f"{label}: escalate", escalate.role, escalate.users, escalate.groups)
        if not escalation_candidates:
            raise WorkflowDefinitionError(f"{label}: escalate has no candidates: give it a role, users or groups")
    return HumanTaskSpec(
        title=title,
        label=display_name,
        candidates=build_candidates(label, role, users, groups),
        outcomes=_check_outcomes(label, outcomes, due=due),
        four_eyes=scope,
        form=None if form is None else _check_form(label, form),
        remind=None if remind is None else positive_seconds(remind, label=f"{label}: remind"),
        escalate_after=escalation_delay,
        escalation_candidates=escalation_candidates,
        shows=shows,
    )


def build_candidates(label: str, role: str | None, users: Sequence[str], groups: Sequence[str]) -> tuple[str, ...]:
    """Return the candidates that a role, users and groups name, each once: ``("group:managers", "user:anna")``.

    ``label`` begins the message of the ``WorkflowDefinitionError`` that this may raise. A role with a dot becomes a
    candidate ``perm:<app.codename>``, any other one ``group:<name>``.
    """
    if role is not None and not (isinstance(role, str) and role and names.is_name(role)):
        raise WorkflowDefinitionError(
            f"{label}: role must be a permission (app.codename) or the name of a group, not {names.quoted(role)}"
        )
    candidates = [] if role is None else [candidate_of_role(role)]
    for kind, entries in (("user", users), ("group", groups)):
        expected = "usernames" if kind == "user" else "group names"
        if isinstance(entries, str) or not isinstance(entries, Sequence):
            raise WorkflowDefinitionError(f"{label}: {kind}s must be a list of {expected}, not {names.quoted(entries)}")
        for name in entries:
            if not names.is_name(name):
                raise WorkflowDefinitionError(
                    f"{label}: {kind}s must be a list of {expected} of 1 to {names.MAX_LENGTH} printable characters; "
                    f"{names.quoted(name)} is none"
                )
        candidates += [f"{kind}:{name}" for name in entries]
    return tuple(dict.fromkeys(candidates))


def positive_seconds(value: Any, *, label: str) -> float:
    """Return a duration above zero in seconds.

    ``label`` names it in the ``WorkflowDefinitionError`` that this may raise.
    """
    try:
        duration = wait_seconds(value, label=label)
    except (TypeError, ValueError) as exc:
        raise WorkflowDefinitionError(str(exc)) from None
    if not duration:
        raise WorkflowDefinitionError(f"{label} must be more than 0")
    return duration


def _check_outcomes(label: str, outcomes: Sequence[str], *, due: bool) -> tuple[str, ...]:
    """Return the names of the outcomes of an approval as a tuple, or raise ``WorkflowDefinitionError``.

    With ``due``, the name ``overdue`` is reserved for an approval that nobody has decided in time. ``label`` begins the
    message.
    """
    if isinstance(outcomes, str) or not isinstance(outcomes, Sequence) or not outcomes:
        raise WorkflowDefinitionError(f"{label}: outcomes must be a list of names, not {outcomes!r}")
    outcome_names = tuple(
        str.__str__(names.check_code_name(outcome, label=f"{label}: an outcome")) for outcome in outcomes
    )
    if len(set(outcome_names)) < len(outcome_names):
        raise WorkflowDefinitionError(f"{label}: outcomes must not contain duplicates: {', '.join(outcome_names)}")
    # The engine reports a passed due date under this name, so code could not distinguish it from a person's decision.
    if due and OVERDUE in outcome_names:
        raise WorkflowDefinitionError(
            f"{label}: the outcome {OVERDUE!r} is reserved for a passed due date: use another name"
        )
    return outcome_names


def _check_form(label: str, form: Any) -> Any:
    """Return the description of the form that an approval declares: a type, or the path of a Django form.

    ``label`` begins the message of a ``WorkflowDefinitionError``.
    """
    try:
        return build_form_spec(form, label)
    except TypeError:
        # `build_form_spec` is cached and hashes its argument; an unhashable value cannot be a type either.
        raise WorkflowDefinitionError(f"{label}: form must be a type or a dotted path, not {form!r}") from None
