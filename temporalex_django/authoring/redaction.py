"""Redaction: which parts of a run a user may see.

The shape of a run is visible to everybody who may see the run: kinds of events, names, numbers and ids, times. All
other values are payloads. Users with the permission see payloads, without the fields that the class redacts. The text
of an exception may quote a payload, and the quoted part cannot be known. If a class redacts fields, only the type of an
exception and the places of its traceback are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.backend import FailedMessage, OpenActivity
from temporalex_django.core.history.events import HistoryEvent, kinds_of
from temporalex_django.core.human_tasks import DECISION_PREFIX
from temporalex_django.errors import ActionNotPermitted

VIEW_PAYLOAD = "temporalex_django.view_payload"
#: Takes the place of a payload for users who may not see payloads.
HIDDEN = {"hidden": VIEW_PAYLOAD}
#: Takes the place of the value of a redacted field.
REDACTED = "[redacted]"
#: Attributes of events that are no payload. All others are treated as payloads, so a new attribute stays hidden until
#: it is added here.
_SHAPE_KEYS = frozenset(
    {"seq", "activity", "workflow", "name", "id", "run_id", "version", "type", "status", "queue", "step", "scope", "sender", "by"}
    | {"attempt", "attempts", "due", "duration", "timeout", "options", "after", "head", "delivered", "parent", "child"}
    | {"parent_close", "engine", "format", "outside", "deprecated", "carried", "max_pending", "admit_updates", "never_consumed"}
    | {"begin", "worker", "search_attributes", "number", "untouched", "failed", "failed_signals", "waits", "denied", "max_calls", "max_bytes"}
)  # fmt: skip
_CHILD_KINDS = kinds_of("child")
_TEXT_KEYS = frozenset({"message", "cause", "traceback", "cause_traceback"})
#: A line of a traceback that names a place. The other lines may quote source text or the exception.
_TRACEBACK_PLACE = re.compile(r' +File "[^"]+", line \d+, in [\w.<>]+')
_BLOCKED_SHAPE_KEYS = frozenset(
    {"code", "since", "attempt", "waits_for", "place", "function", "event", "recorded", "produced", "last"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redactor:
    """The rules by which a run is shown to one user.

    ``may_see_payloads`` is True if the user has the permission to see payloads. ``redacted_paths`` are the paths of
    hidden fields, such as "customer.email"; None means that they are not known, so no payload is shown.
    ``mask(payload)`` changes each payload last, before it is shown; None changes nothing.
    """

    may_see_payloads: bool = True
    redacted_paths: Sequence[str] | None = ()
    mask: Callable[[Any], Any] | None = None

    @property
    def shows_payloads(self) -> bool:
        """True if any payload is shown."""
        return self.may_see_payloads and self.redacted_paths is not None

    @property
    def shows_error_text(self) -> bool:
        """True if texts of exceptions are shown; they may quote redacted fields."""
        return self.shows_payloads and not self.redacted_paths

    def require_payloads(self, user: object) -> Redactor:
        """Return this redactor if it shows payloads, for views that consist of payloads alone.

        ``user`` is named in the error. Raises ``ActionNotPermitted``.
        """
        if not self.shows_payloads:
            raise ActionNotPermitted(f"{user} may not see payloads: this requires the permission {VIEW_PAYLOAD}")
        return self

    def redact_payload(self, payload: Any, *, message_name: str = "") -> Any:
        """Return a payload with its redacted fields hidden, or a placeholder if the user may see no payload.

        ``message_name`` is the name of the message with this payload, with which a redacted path may begin.
        """
        if not self.shows_payloads:
            return HIDDEN
        return self.redact_answer(payload, message_name=message_name)

    def redact_answer(self, answer: Any, *, message_name: str = "") -> Any:
        """Return the answer to a query or an update with its redacted fields hidden.

        The user asked for the answer and may see it without the permission to view payloads. ``message_name`` is the
        name of the query or the update, with which a redacted path may begin.
        """
        paths = [tuple(path.split(".")) for path in self.redacted_paths or ()]
        redacted_answer = redact(answer, paths, (message_name,)) if paths else answer
        return redacted_answer if self.mask is None else self.mask(redacted_answer)

    def redact_text(self, text: str) -> str:
        """Return the text of an exception, or a placeholder if the user may not see texts that can quote payloads."""
        if not self.shows_payloads:
            return f"hidden: this requires the permission {VIEW_PAYLOAD}"
        return text if self.shows_error_text else REDACTED

    def redact_waiting_for(self, waiting_for: Iterable[str], waits: Iterable[Mapping[str, Any]] | None) -> list[str]:
        """Return the texts that say what a run waits for (``waiting_for``), as the user may see them.

        ``waits`` describes the same waits as data (``WaitInfo``). Titles of human tasks are payloads. A user who may
        not see every payload in full gets the keys of the tasks instead.
        """
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
        """Return the text of an exception for the sender of the message that caused it.

        Senders know their own payload, so they need no permission. A placeholder is returned only if the class redacts
        fields, which the text might quote, or is not known.
        """
        return REDACTED if self.redacted_paths is None or self.redacted_paths else text

    def redact_failed_message(self, message: FailedMessage) -> FailedMessage:
        """Return a failed message as the user may see it; the text of its exception may quote payloads."""
        return (
            message
            if self.shows_error_text and self.shows_payloads
            else replace(message, message=self.redact_text(message.message))
        )

    def redact_traceback(self, text: str) -> str:
        """Return the text of a traceback as the user may see it.

        A user who may see no payloads gets a placeholder. If the class redacts fields, only the lines that name files
        and functions are kept.
        """
        if self.shows_error_text or not self.shows_payloads:
            return self.redact_text(text)
        return "\n".join([*(line for line in text.splitlines() if _TRACEBACK_PLACE.fullmatch(line)), REDACTED])

    def redact_attributes(self, attributes: Any, *, kind: str = "") -> Any:
        """Return the attributes of a history event as the user may see them. ``kind`` is the kind of the event.

        The payloads of a child workflow are redacted by the rules of the child's class. The class of a child's result
        is not known here, so the fields that any class redacts are hidden.
        """
        if not isinstance(attributes, Mapping):
            return self.redact_payload(attributes)
        if self is not UNREDACTED and self.shows_payloads and kind in _CHILD_KINDS:
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
        """Return a history event as the user may see it."""
        return replace(event, attributes=self.redact_attributes(event.attributes, kind=event.kind))

    def redact_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return headers as the user may see them: without their values if they may see no payload."""
        return {name: self.redact_payload(value) for name, value in headers.items()}

    def redact_activity(self, activity: OpenActivity) -> OpenActivity:
        """Return an open activity as the user may see it.

        The texts of its progress and of its last failure may quote payloads.
        """
        failure = activity.last_failure
        if self.shows_error_text:
            return activity
        if activity.progress is not None:
            activity = replace(activity, progress={**activity.progress, "text": ""})
        if failure is None:
            return activity
        traceback = (
            self.redact_traceback(failure.traceback) if self.shows_payloads and failure.traceback is not None else None
        )
        details = None if failure.details is None else self.redact_payload(failure.details)
        redacted_failure = replace(
            failure, message=self.redact_text(failure.message), traceback=traceback, details=details
        )
        return replace(activity, last_failure=redacted_failure)

    def _for_child(self, workflow: object) -> Redactor:
        """Return a redactor. ``workflow`` is the name of the child's class, or None if unknown."""
        # One class that is missing here could redact anything, so everything is hidden then.
        names = [workflow] if isinstance(workflow, str) else [*workflows.registry]
        path_lists = [redacted_paths_of(name) for name in names]
        if None in path_lists:
            return replace(self, redacted_paths=None)
        return replace(
            self, redacted_paths=[*(self.redacted_paths or ()), *(path for paths in path_lists for path in paths or ())]
        )

    def redact_blocked(self, blocked: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the facts about a blocked run (``Description.blocked``) as the user may see them.

        The error may quote payloads.
        """
        if not blocked or self.shows_error_text:
            return blocked
        return {k: v if k in _BLOCKED_SHAPE_KEYS else self.redact_text("") for k, v in blocked.items()}


#: The redactor of code, which may see everything.
UNREDACTED = Redactor()


def redact(value: Any, paths: Sequence[tuple[str, ...]], location: tuple[str, ...] = ()) -> Any:
    """Return ``value`` with a placeholder in each field that one of ``paths`` names.

    A path names a field if the keys that lead to the field end with it. ``location`` has the keys that lead to
    ``value``. Positions in lists do not count as keys.
    """
    if any(location[-len(path) :] == path for path in paths):
        return REDACTED
    if isinstance(value, Mapping):
        return {key: redact(part, paths, (*location, str(key))) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(part, paths, location) for part in value]
    return value


def redacted_paths_of(workflow: str) -> Sequence[str] | None:
    """Return the paths that any version of the named class redacts, or None if this process lacks the class."""
    workflow_class = workflows.find_or_none(workflow)
    if workflow_class is None:
        return None
    classes = (
        [workflow_class] if issubclass(workflow_class, workflows.Workflow) else [*workflow_class.versions.values()]
    )
    return list(dict.fromkeys(path for cls in classes for path in cls.redacted))
