"""What somebody sees of a run: its shape, its payloads, and of those not the fields that its class redacts.

The shape is what happened and when: kinds of events, names, numbers and ids of things, times. All else is payload,
whatever it is called. What an exception says may quote a payload, and nobody knows which part of it: where a class
redacts fields its words are not shown, only its type and the places that a traceback names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.backend import FailedMessage, OpenActivity
from temporalex_django.core.approvals import DECISION_PREFIX
from temporalex_django.core.history.events import HistoryEvent
from temporalex_django.errors import ActionNotPermitted

VIEW_PAYLOAD = "temporalex_django.view_payload"
#: Stands where a payload is, for whoever may not see payloads.
HIDDEN = {"hidden": VIEW_PAYLOAD}
#: Stands where the value of a redacted field is.
REDACTED = "[redacted]"
#: Attributes of events that are no payload. Any other is, so that a new one is hidden until somebody has thought about
#: it.
_SHAPE_KEYS = frozenset(
    {"seq", "activity", "workflow", "name", "id", "run_id", "version", "type", "status", "queue", "step", "scope", "sender", "by"}
    | {"attempt", "attempts", "due", "duration", "timeout", "options", "after", "head", "delivered", "parent", "child"}
    | {"parent_close", "engine", "format", "outside", "deprecated", "carried", "max_pending", "admit_updates", "never_consumed"}
    | {"search_attributes", "number", "untouched", "failed", "failed_signals"}
)  # fmt: skip
_TEXT_KEYS = frozenset({"message", "cause", "traceback"})
#: A line of a traceback that says where something was: the lines between may be of what was raised.
_TRACEBACK_PLACE = re.compile(r' +File "[^"]+", line \d+, in [\w.<>]+')
_BLOCKED_SHAPE_KEYS = frozenset({"code", "since", "attempt", "waits_for", "place", "event", "recorded", "produced"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """What is shown.

    ``may_see_payloads``: whether he sees them at all. ``redacted_paths``: paths that he does not see; None: they are
    not known, so nothing is shown. ``mask`` is the last to see a payload before it is shown.
    """

    may_see_payloads: bool = True
    redacted_paths: Sequence[str] | None = ()
    mask: Callable[[Any], Any] | None = None

    @property
    def shows_payloads(self) -> bool:
        """Whether any payload is shown."""
        return self.may_see_payloads and self.redacted_paths is not None

    @property
    def shows_error_text(self) -> bool:
        """Whether what exceptions say is shown: it may quote what is redacted."""
        return self.shows_payloads and not self.redacted_paths

    def require_payloads(self, user: object) -> Redactor:
        """Raises ``ActionNotPermitted`` where nothing but payload is wanted, and none is shown."""
        if not self.shows_payloads:
            raise ActionNotPermitted(f"{user} may not see payloads: that takes the permission {VIEW_PAYLOAD}")
        return self

    def redact_payload(self, payload: Any, *, message_name: str = "") -> Any:
        """A payload as it is shown; ``message_name``: the name of its message."""
        if not self.shows_payloads:
            return HIDDEN
        return self.redact_answer(payload, message_name=message_name)

    def redact_answer(self, answer: Any, *, message_name: str = "") -> Any:
        """What he asked for and is given in any case, without what is redacted."""
        paths = [tuple(path.split(".")) for path in self.redacted_paths or ()]
        redacted_answer = redact(answer, paths, (message_name,)) if paths else answer
        return redacted_answer if self.mask is None else self.mask(redacted_answer)

    def redact_text(self, text: str) -> str:
        """What an exception says: it may quote payloads."""
        if not self.shows_payloads:
            return f"hidden: that takes the permission {VIEW_PAYLOAD}"
        return text if self.shows_error_text else REDACTED

    def redact_waiting_for(self, waiting_for: Iterable[str], waits: Iterable[Mapping[str, Any]] | None) -> list[str]:
        """List in words what a run waits for; titles of human tasks are payloads, and their keys stand for them."""
        if self.shows_error_text:
            return [*waiting_for]
        keys = {
            f"{DECISION_PREFIX}{entry.get('label')}": f"{DECISION_PREFIX}{entry['name']}"
            for entry in waits or ()
            if "name" in entry
        }
        return [
            keys.get(entry, DECISION_PREFIX.strip()) if entry.startswith(DECISION_PREFIX) else entry
            for entry in waiting_for
        ]

    def redact_own_failure(self, text: str) -> str:
        """The words of an exception for the sender of the message that caused it, who knows what they sent."""
        return REDACTED if self.redacted_paths is None or self.redacted_paths else text

    def redact_failed_message(self, message: FailedMessage) -> FailedMessage:
        """A signal whose handler failed: the words of its exception may quote payloads."""
        return (
            message
            if self.shows_error_text and self.shows_payloads
            else replace(message, message=self.redact_text(message.message))
        )

    def redact_traceback(self, text: str) -> str:
        """As much of it as ``text`` would show; its places, where words are redacted."""
        if self.shows_error_text or not self.shows_payloads:
            return self.redact_text(text)
        return "\n".join([*(line for line in text.splitlines() if _TRACEBACK_PLACE.fullmatch(line)), REDACTED])

    def redact_attributes(self, attributes: Any, *, kind: str = "") -> Any:
        """Those of an event of that kind. What goes to a child and comes from it is redacted as the child's class says.

        Of a result nobody knows here whose it is: all that any class redacts is.
        """
        if not isinstance(attributes, Mapping):
            return self.redact_payload(attributes)
        if self is not UNREDACTED and self.shows_payloads and kind in ("ChildStarted", "ChildCompleted", "ChildFailed"):
            return self._for_child(attributes.get("workflow")).redact_attributes(attributes)
        message_name = str(attributes.get("name") or "")
        return {k: self._redact_attribute(k, v, message_name) for k, v in attributes.items()}

    def _redact_attribute(self, key: str, value: Any, message_name: str) -> Any:
        if key in _SHAPE_KEYS:
            return value
        if key in _TEXT_KEYS and isinstance(value, str):
            return self.redact_traceback(value) if key == "traceback" else self.redact_text(value)
        return self.redact_payload(value, message_name=message_name)

    def redact_event(self, event: HistoryEvent) -> HistoryEvent:
        return replace(event, attributes=self.redact_attributes(event.attributes, kind=event.kind))

    def redact_activity(self, activity: OpenActivity) -> OpenActivity:
        """One that has no result yet: the words of its last failure may quote payloads."""
        failure = activity.last_failure
        if failure is None or self.shows_error_text:
            return activity
        traceback = (
            self.redact_traceback(failure.traceback) if self.shows_payloads and failure.traceback is not None else None
        )
        redacted_failure = replace(failure, message=self.redact_text(failure.message), traceback=traceback)
        return replace(activity, last_failure=redacted_failure)

    def _for_child(self, workflow: object) -> Redactor:
        names = [workflow] if isinstance(workflow, str) else [*workflows.registry]
        path_lists = [redacted_paths_of(name) for name in names]
        if None in path_lists:
            return replace(self, redacted_paths=None)
        return replace(
            self, redacted_paths=[*(self.redacted_paths or ()), *(path for paths in path_lists for path in paths or ())]
        )

    def redact_blocked(self, blocked: dict[str, Any] | None) -> dict[str, Any] | None:
        """Why a run cannot go on: the text of the error may quote payloads."""
        if not blocked or self.shows_error_text:
            return blocked
        return {k: v if k in _BLOCKED_SHAPE_KEYS else self.redact_text("") for k, v in blocked.items()}


#: Code sees everything.
UNREDACTED = Redactor()


def redact(value: Any, paths: Sequence[tuple[str, ...]], location: tuple[str, ...] = ()) -> Any:
    """``value`` without the fields that one of ``paths`` leads to.

    The end of the way to a field, through lists, counts.
    """
    if any(location[-len(path) :] == path for path in paths):
        return REDACTED
    if isinstance(value, Mapping):
        return {key: redact(part, paths, (*location, str(key))) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(part, paths, location) for part in value]
    return value


def redacted_paths_of(workflow: str) -> Sequence[str] | None:
    """What the class of that name redacts, in any of its versions; None where this process does not have it."""
    workflow_class = workflows.find_or_none(workflow)
    if workflow_class is None:
        return None
    classes = (
        [workflow_class] if issubclass(workflow_class, workflows.Workflow) else [*workflow_class.versions.values()]
    )
    return list(dict.fromkeys(path for cls in classes for path in cls.redacted))
