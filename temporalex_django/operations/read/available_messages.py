"""The messages that a run accepts now, the type of each payload, and the reason why a user may not send one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any, Literal

from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy
from temporalex_django.authoring import authorization
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.authoring.declared_messages import MessageKind, messages_of
from temporalex_django.core.payloads.codec import resolve_hints
from temporalex_django.errors import ActionNotPermitted, UnknownWorkflow
from temporalex_django.graph.engine import find_declared_event
from temporalex_django.graph.steps import external_events, key_of, role_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import Instance

_PERMISSIONS = {"signal": "signal_instance", "update": "update_instance", "resume": "signal_instance"}
_SIGNAL_PREFIX = "signal "
_MAX_MESSAGES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableMessage:
    """A message that can be sent to a run now: a signal, an update, or an event that a step of a graph waits for.

    - ``kind``: "resume" for an event, with the key of the waiting step in ``step``.
    - ``args_type``: the annotation of the payload; Any if this process lacks the code or the code has no annotation.
    - ``answer_type``: the type of the answers to an update, likewise.
    - ``permission``: the permission that the declaration of the message requires, or None.
    - ``role``: the role of the step, which the sender must have, or None.
    - ``about``: the description of the message in the code, or empty.
    """

    kind: Literal["signal", "update", "resume"]
    name: str
    step: str | None = None
    args_type: Any = Any
    answer_type: Any = Any
    permission: str | None = None
    role: str | None = None
    about: str = ""

    def why_not(self, user: Person, run: Instance) -> str | None:
        """Return the sentence that says why this user may not send the message to the run, or None if they may.

        It asks the access policy; nothing else is read.
        """
        permission = f"{APP}.{_PERMISSIONS[self.kind]}"
        operation = Operation(action=self.kind, permission=permission, message=self.name).of(run)
        if self.role is not None and not _has_role(user, self.role):
            return _("Only %(role)s may decide this.") % {"role": self.role}
        if self.kind == "resume" and self.permission is not None:
            is_permitted = policy().permits(user, self.permission)
            if is_permitted:
                return None
            return _("You may not send it: this requires the permission %(wanted)s.") % {"wanted": self.permission}
        # The role of a step is the only requirement; people who have it need no permission to signal runs.
        if self.role is not None:
            return None
        if not policy().allows(user, operation):
            return _("You may not send it: this requires the permission %(wanted)s.") % {"wanted": permission}
        if self.permission is not None and not policy().permits(user, self.permission):
            return _("You may not send it: this requires the permission %(wanted)s.") % {"wanted": self.permission}
        return None


def available_messages(run: Instance) -> list[AvailableMessage]:
    """Return the messages that a run accepts now, updates first; an empty list for a closed run.

    There are at most 50. They come from the row of the run; nothing else is read.
    """
    if not run.is_open:
        return []
    code = _workflow_class(run)
    declarations = messages_of(code) if code is not None else {}
    # A dict keeps the order and drops a signal that is both accepted by a phase and waited for.
    names: dict[tuple[MessageKind, str], None] = {}
    for kind, accepts_key in (("update", "updates"), ("signal", "signals")):
        names |= dict.fromkeys((kind, str(name)) for name in (run.accepts or {}).get(accepts_key) or ())  # type: ignore[misc]
    waits = [str(wait) for wait in run.waiting_for or ()]
    names |= dict.fromkeys(
        ("signal", wait.removeprefix(_SIGNAL_PREFIX)) for wait in waits if wait.startswith(_SIGNAL_PREFIX)
    )
    messages = []
    for kind, name in names:
        declaration = declarations.get((kind, name))
        if declaration is None:
            messages.append(AvailableMessage(kind=kind, name=name))
        else:
            messages.append(
                AvailableMessage(
                    kind=kind,
                    name=name,
                    args_type=declaration.args_type,
                    answer_type=declaration.answer_type,
                    permission=declaration.permission,
                    about=declaration.about,
                )
            )
    if code is not None and issubclass(code, GraphWorkflow):
        messages += _step_events(run, code)
    return messages[:_MAX_MESSAGES]


def _step_events(run: Instance, code: type[GraphWorkflow]) -> list[AvailableMessage]:
    """Return a message for each event that a waiting step of the graph class ``code`` accepts from outside.

    Events of timers are left out, because they fire by themselves.
    """
    published = run.published_state
    waiting = None
    if isinstance(published, dict):
        waiting = published.get("waiting")
    keys = {str(key) for key in waiting or ()}
    messages = []
    for step in code.graph() if keys else ():
        if key_of(step) not in keys:
            continue
        for event in external_events(step):
            declaration = find_declared_event(step, event)
            message = AvailableMessage(kind="resume", name=event, step=key_of(step), role=role_of(step))
            if declaration is not None:
                message = replace(message, args_type=declaration.data_type, permission=declaration.permission)
            messages.append(message)
    return messages


def _workflow_class(run: Instance) -> Any:
    try:
        return workflows.class_for_run(run.workflow, run.version)
    except UnknownWorkflow:
        return None


def _has_role(user: Person, role: str) -> bool:
    try:
        return authorization.has_role(user, role)
    except ActionNotPermitted:
        return False


def available_queries(run: Instance) -> dict[str, Any]:
    """Return the queries that the class of a run answers, by name, each with the annotation of its argument.

    The annotation is None for a query without an argument. The dict is empty if this process lacks the class.
    """
    code = _workflow_class(run)
    queries = {} if code is None else code._queries  # noqa: SLF001 - of our own class
    return {name: _argument_type(fn) for name, fn in queries.items()}


def _argument_type(fn: Any) -> Any:
    parameters = [*inspect.signature(fn).parameters]
    if len(parameters) > 1:
        return resolve_hints(fn).get(parameters[1], Any)
    return None
