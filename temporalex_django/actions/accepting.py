"""Which messages a run takes now, what goes with each, and why somebody may not send one."""

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
from temporalex_django.core.payloads import resolve_hints
from temporalex_django.errors import ActionNotPermitted, UnknownWorkflow
from temporalex_django.graph.events import find_declared_event
from temporalex_django.graph.steps import external_events, key_of, role_of
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import Instance

_PERMISSIONS = {"signal": "signal_instance", "update": "update_instance", "resume": "signal_instance"}
_WAITED = "signal "
_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedMessage:
    """A signal, an update, or an event that a step of a graph waits for (``resume``, with the key of the ``step``).

    ``args_type`` is the annotation of what goes with it, Any where its code is not here or does not say.
    """

    kind: Literal["signal", "update", "resume"]
    name: str
    step: str | None = None
    args_type: Any = Any
    permission: str | None = None
    role: str | None = None
    about: str = ""

    def why_not(self, user: Person, run: Instance) -> str | None:
        """Why this person may not send it; None: he may. Asks the policy, and no database."""
        wanted = f"{APP}.{_PERMISSIONS[self.kind]}"
        asked = Operation(action=self.kind, permission=wanted, message=self.name).of(run)
        if self.role is not None and not _holds(user, self.role):
            return _("That is for %(role)s to decide.") % {"role": self.role}
        if self.kind == "resume" and self.permission is not None:
            held = policy().permits(user, self.permission)
            return (
                None
                if held
                else _("You may not send it: that takes the permission %(wanted)s.") % {"wanted": self.permission}
            )
        if self.role is not None:
            return None
        if not policy().allows(user, asked):
            return _("You may not send it: that takes the permission %(wanted)s.") % {"wanted": wanted}
        if self.permission is not None and not policy().permits(user, self.permission):
            return _("You may not send it: that takes the permission %(wanted)s.") % {"wanted": self.permission}
        return None


def accepted(run: Instance) -> list[AcceptedMessage]:
    """What an open run takes now, from its row; nothing is read but that. Updates first."""
    if not run.is_open:
        return []
    code = _code(run)
    known = messages_of(code) if code is not None else {}
    names: dict[tuple[MessageKind, str], None] = {}
    for kind, among in (("update", "updates"), ("signal", "signals")):
        names |= dict.fromkeys((kind, str(name)) for name in (run.accepts or {}).get(among) or ())  # type: ignore[misc]
    waited = [str(wait) for wait in run.waiting_for or ()]
    names |= dict.fromkeys(("signal", wait.removeprefix(_WAITED)) for wait in waited if wait.startswith(_WAITED))
    found = []
    for kind, name in names:
        said = known.get((kind, name))
        if said is None:
            found.append(AcceptedMessage(kind=kind, name=name))
        else:
            found.append(
                AcceptedMessage(
                    kind=kind, name=name, args_type=said.args_type, permission=said.permission, about=said.about
                )
            )
    if code is not None and issubclass(code, GraphWorkflow):
        found += _events(run, code)
    return found[:_MOST]


def _events(run: Instance, code: type[GraphWorkflow]) -> list[AcceptedMessage]:
    """What the waiting steps of a graph can be resumed with; a timer comes by itself."""
    published = run.published_state
    waiting = published.get("waiting") if isinstance(published, dict) else None
    keys = {str(key) for key in waiting or ()}
    found = []
    for step in code.graph() if keys else ():
        if key_of(step) not in keys:
            continue
        for event in external_events(step):
            said = find_declared_event(step, event)
            message = AcceptedMessage(kind="resume", name=event, step=key_of(step), role=role_of(step))
            if said is not None:
                message = replace(message, args_type=said.data_type, permission=said.permission)
            found.append(message)
    return found


def _code(run: Instance) -> Any:
    try:
        return workflows.class_for_run(run.workflow, run.version)
    except UnknownWorkflow:
        return None


def _holds(user: Person, role: str) -> bool:
    try:
        return authorization.has_role(user, role)
    except ActionNotPermitted:
        return False


def answered(run: Instance) -> dict[str, Any]:
    """The queries that its class answers, each with the annotation of its argument; None: it takes none."""
    code = _code(run)
    queries = {} if code is None else code._queries  # noqa: SLF001 - of our own class
    return {name: _asked(fn) for name, fn in queries.items()}


def _asked(fn: Any) -> Any:
    parameters = [*inspect.signature(fn).parameters]
    return resolve_hints(fn).get(parameters[1], Any) if len(parameters) > 1 else None
