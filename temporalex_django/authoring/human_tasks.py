"""Human tasks and approvals in workflow code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

from temporalex_django.authoring.authorization import (
    Person,
    candidate_of_role,
    has_permission,
    matches_candidate,
    sender_key,
)
from temporalex_django.authoring.foreign_options import ESCALATION, answers_foreign_arguments
from temporalex_django.core import names
from temporalex_django.core.human_tasks import OVERDUE, HumanTaskSpec, HumanTaskState, build_form_spec, parse_scope
from temporalex_django.core.names import wait_seconds
from temporalex_django.core.payloads import codec
from temporalex_django.errors import (
    ActionNotPermitted,
    FourEyes,
    HumanTaskClosed,
    HumanTaskNotFound,
    PayloadError,
    WorkflowDefinitionError,
)

# --- human tasks ------------------------------------------------------------------------------------------------------
#
# Human tasks as handles return them, the selection of one of them, and the check of the data of a decision.


PersonTest = Callable[[Person], bool]
PersonPermits = Callable[[Person, str], bool]


def form_class(path: str) -> Any:
    """Return the Django form class at a dotted path. Raises ``PayloadError`` if it is missing or is not a form."""
    module, _, name = path.rpartition(".")
    try:
        form_type = getattr(import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise PayloadError(
            f"the form {path} is missing: {exc}. Restore it, or ask again in a new version of the workflow"
        ) from exc
    # Checked by its method, because the in-memory environment runs without Django.
    if not (isinstance(form_type, type) and hasattr(form_type, "is_valid")):
        raise PayloadError(f"{path} is not a form: it has no is_valid()")
    return form_type


def clean_data(path: str, data: Any, *, label: str) -> Any:
    """Clean ``data`` with the Django form class at the dotted path ``path``, and return the cleaned data as JSON.

    ``label`` names the data in errors. Raises ``PayloadError`` with the errors of the form.
    """
    if data is not None and not isinstance(data, dict):
        raise PayloadError(f"{label} must be an object with the fields of {path}, not {type(data).__name__}")
    form = form_class(path)(data or {})
    if not form.is_valid():
        error_text = "; ".join(f"{name}: {' '.join(map(str, errors))}" for name, errors in form.errors.items())
        raise PayloadError(f"{label} are not valid: {error_text}")
    return codec.to_plain(dict(form.cleaned_data), label=label)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHumanTask:
    """A human task, a decision that a run asks people for, as handles return it.

    ``asked`` are the candidates who may decide: ``user:``, ``group:`` or ``perm:`` and a name. ``four_eyes`` is the
    scope in which a different person has to decide, "chain" or "run", and "" without four eyes. ``form`` describes the
    data of the decision: its kind, name, schema and digest. ``shows`` is the value that people decide about, in
    addition to the title; None without one. ``claimed_by`` is the person who has reserved the task, until
    ``claimed_until``. ``happened`` says how the task ended, and is "" while it is open.
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
        """Return the task with the facts that the run itself keeps about it (``task``).

        ``id`` is the id of the task's row in the database.
        """
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
    """Return the open task that ``selector`` (a key, an id or a title) names, or the only open one if it is None.

    ``run`` names the run in errors. Raises ``HumanTaskNotFound`` if none or several match, and ``HumanTaskClosed`` with
    what happened to a task that is no longer open.
    """
    matches = [task for task in tasks if selector is None or selector in (task.key, task.id, task.title)]
    # Steps that ask again use the same title, so closed tasks may match as well; the open one is meant.
    open_tasks = [task for task in matches if not task.happened]
    if len(open_tasks) == 1:
        return open_tasks[0]
    if open_tasks:
        choices = ", ".join(f"{task.key!r} ({task.title})" for task in open_tasks)
        raise HumanTaskNotFound(f"{run} asks for several decisions: choose one with task=, from {choices}")
    # A task that is closed gets its own error: the caller was too late, and can be told what happened instead.
    if matches:
        raise HumanTaskClosed(f"{run}: the human task {matches[-1].title!r} is no longer open: {matches[-1].happened}")
    raise HumanTaskNotFound(f"{run} has no open decision" + ("" if selector is None else f" {selector[:200]!r}"))


def task_label(key: str, run_label: str) -> str:
    """Return the words by which errors name a human task: its key, and the class and the business id of its run.

    The title is left out, because people who may not see it read these messages.
    """
    return f"the human task {key!r} of {run_label}"


def require_outcome(outcomes: Sequence[str], outcome: object, *, label: str) -> None:
    """Raise ``PayloadError`` unless ``outcome`` is one of the outcomes of the task that ``label`` names."""
    if not isinstance(outcome, str) or outcome not in outcomes:
        raise PayloadError(f"{label} accepts {', '.join(outcomes)}, not {outcome!r}")


def require_user(user: Person | None, *, label: str) -> Person:
    """Return the user who decides the task that ``label`` names. Raises ``ActionNotPermitted`` for code."""
    if user is None:
        raise ActionNotPermitted(f"{label} must be decided by a user: pass by=user")
    return user


def matching_candidate(
    people: Iterable[Person],
    candidates: Collection[str],
    *,
    permits: PersonPermits = has_permission,
    is_excluded: PersonTest,
) -> tuple[str, Person] | None:
    """Return ``(candidate, person)``: the first candidate that matches one of the people, and whom it matches; or None.

    The candidate is text such as ``group:managers``. ``permits(person, permission)`` decides who has a permission. A
    match of an excluded person is returned only if there is no other one: it makes the error say that four eyes are the
    reason, instead of a lack of rights.
    """
    excluded_match = None
    for person in people:
        for candidate in candidates:
            if matches_candidate(person, candidate, permits=permits):
                if not is_excluded(person):
                    return candidate, person
                excluded_match = excluded_match or (candidate, person)
                break
    return excluded_match


def require_candidacy(
    user: Person,
    candidacy: tuple[str, Person] | None,
    *,
    candidates: Sequence[str],
    label: str,
    is_excluded: PersonTest,
) -> tuple[str, Person]:
    """Return ``candidacy``, which ``matching_candidate`` has found, if it lets the user decide the task.

    ``candidates`` are those of the task, and ``label`` names it. Raises ``ActionNotPermitted`` if no candidate
    matches. Raises ``FourEyes`` if the user or the person for whom they decide is excluded, for example because they
    started the run or decided an earlier approval.
    """
    if candidacy is None:
        raise ActionNotPermitted(f"{user} may not decide {label}: the candidates are {', '.join(candidates)}")
    # Both the user and the person they represent must qualify: deciding for somebody else must not evade four eyes.
    for person in {sender_key(user): user, sender_key(candidacy[1]): candidacy[1]}.values():
        if is_excluded(person):
            raise FourEyes(
                f"{user} may not decide {label}: a different user must decide, because {person} "
                "started, forked or scheduled the run, or decided an earlier approval"
            )
    return candidacy


def clean_form_data(form: Mapping[str, Any] | None, data: Any, *, title: str) -> dict[str, Any]:
    """Clean the data of a decision with the Django form of its task, if the task has one.

    ``form`` describes the form, as ``OpenHumanTask.form`` does. The result has the key ``data`` and, if a Django form
    was applied, the key ``judged`` with the path of the form. Data for other kinds of forms are returned unchanged,
    because they are checked in the turn. ``title`` names the task in errors. Raises ``PayloadError``.
    """
    # Only Django forms run here, before the turn: their code may query the database, which workflow code must not.
    if form is None or form["kind"] != "form":
        return {"data": data}
    label = f"the data for the human task {title!r}"
    return {"data": clean_data(form["name"], data, label=label), "judged": form["name"]}


def base_key(key: str) -> str:
    """Return the key of a human task without the suffix ``#n``.

    A step of a graph that asks a second time opens another task. The key of that task is the key of the step with such
    a suffix.
    """
    return key.partition("#")[0]


# --- approvals --------------------------------------------------------------------------------------------------------
#
# The arguments of an approval, and the checks that turn them into the spec of a human task.


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
    """Raise ``WorkflowDefinitionError`` for bad names. With ``due``, ``overdue`` is reserved."""
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
    """Return a type, or the path of a Django form. Raises ``WorkflowDefinitionError``."""
    try:
        return build_form_spec(form, label)
    except TypeError:
        # `build_form_spec` is cached and hashes its argument; an unhashable value cannot be a type either.
        raise WorkflowDefinitionError(f"{label}: form must be a type or a dotted path, not {form!r}") from None
