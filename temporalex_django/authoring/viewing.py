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
from temporalex_django.authoring.binding import FailedMessage, OpenActivity
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
_SHAPE = frozenset(
    {"seq", "activity", "workflow", "name", "id", "run_id", "version", "type", "status", "queue", "step", "scope", "sender", "by"}
    | {"attempt", "attempts", "due", "duration", "timeout", "options", "after", "head", "delivered", "parent", "child"}
    | {"parent_close", "engine", "format", "outside", "deprecated", "carried", "max_pending", "admit_updates", "never_consumed"}
    | {"search_attributes", "number", "untouched", "failed", "failed_signals"}
)  # fmt: skip
_TEXTS = frozenset({"message", "cause", "traceback"})
#: A line of a traceback that says where something was: the lines between may be of what was raised.
_PLACE = re.compile(r' +File "[^"]+", line \d+, in [\w.<>]+')
_SHAPE_OF_BLOCKED = frozenset({"code", "since", "attempt", "waits_for", "place", "event", "recorded", "produced"})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown.

    ``payloads``: whether he sees them at all. ``redact``: paths that he does not see; None: they are not known, so
    nothing is shown. ``mask`` is the last to see a payload before it is shown.
    """

    payloads: bool = True
    redact: Sequence[str] | None = ()
    mask: Callable[[Any], Any] | None = None

    @property
    def open(self) -> bool:
        """Whether any payload is shown."""
        return self.payloads and self.redact is not None

    @property
    def words(self) -> bool:
        """Whether what exceptions say is shown: it may quote what is redacted."""
        return self.open and not self.redact

    def require(self, who: object) -> View:
        """Raises ``ActionNotPermitted`` where nothing but payload is wanted, and none is shown."""
        if not self.open:
            raise ActionNotPermitted(f"{who} may not see payloads: that takes the permission {VIEW_PAYLOAD}")
        return self

    def value(self, value: Any, *, under: str = "") -> Any:
        """A payload as it is shown; ``under``: the name of its message."""
        if not self.open:
            return HIDDEN
        return self.answer(value, under=under)

    def answer(self, value: Any, *, under: str = "") -> Any:
        """What he asked for and is given in any case, without what is redacted."""
        paths = [tuple(path.split(".")) for path in self.redact or ()]
        shown = redacted(value, paths, (under,)) if paths else value
        return shown if self.mask is None else self.mask(shown)

    def text(self, text: str) -> str:
        """What an exception says: it may quote payloads."""
        if not self.open:
            return f"hidden: that takes the permission {VIEW_PAYLOAD}"
        return text if self.words else REDACTED

    def waiting(self, waiting_for: Iterable[str], waits: Iterable[Mapping[str, Any]] | None) -> list[str]:
        """List in words what a run waits for; titles of human tasks are payloads, and their keys stand for them."""
        if self.words:
            return [*waiting_for]
        keys = {
            f"{DECISION_PREFIX}{one.get('label')}": f"{DECISION_PREFIX}{one['name']}"
            for one in waits or ()
            if "name" in one
        }
        return [
            keys.get(one, DECISION_PREFIX.strip()) if one.startswith(DECISION_PREFIX) else one for one in waiting_for
        ]

    def own_failure(self, text: str) -> str:
        """The words of an exception for the sender of the message that caused it, who knows what they sent."""
        return REDACTED if self.redact is None or self.redact else text

    def failed_message(self, failed: FailedMessage) -> FailedMessage:
        """A signal whose handler failed: the words of its exception may quote payloads."""
        return failed if self.words and self.open else replace(failed, message=self.text(failed.message))

    def traceback(self, text: str) -> str:
        """As much of it as ``text`` would show; its places, where words are redacted."""
        if self.words or not self.open:
            return self.text(text)
        return "\n".join([*(line for line in text.splitlines() if _PLACE.fullmatch(line)), REDACTED])

    def attributes(self, attributes: Any, *, kind: str = "") -> Any:
        """Those of an event of that kind. What goes to a child and comes from it is redacted as the child's class says.

        Of a result nobody knows here whose it is: all that any class redacts is.
        """
        if not isinstance(attributes, Mapping):
            return self.value(attributes)
        if self is not EVERYTHING and self.open and kind in ("ChildStarted", "ChildCompleted", "ChildFailed"):
            return self._of_child(attributes.get("workflow")).attributes(attributes)
        under = str(attributes.get("name") or "")
        return {k: self._attribute(k, v, under) for k, v in attributes.items()}

    def _attribute(self, key: str, value: Any, under: str) -> Any:
        if key in _SHAPE:
            return value
        if key in _TEXTS and isinstance(value, str):
            return self.traceback(value) if key == "traceback" else self.text(value)
        return self.value(value, under=under)

    def event(self, event: HistoryEvent) -> HistoryEvent:
        return replace(event, attributes=self.attributes(event.attributes, kind=event.kind))

    def activity(self, activity: OpenActivity) -> OpenActivity:
        """One that has no result yet: the words of its last failure may quote payloads."""
        failure = activity.last_failure
        if failure is None or self.words:
            return activity
        places = self.traceback(failure.traceback) if self.open and failure.traceback is not None else None
        hidden = replace(failure, message=self.text(failure.message), traceback=places)
        return replace(activity, last_failure=hidden)

    def _of_child(self, workflow: object) -> View:
        names = [workflow] if isinstance(workflow, str) else [*workflows.registry]
        found = [redactions(name) for name in names]
        if None in found:
            return replace(self, redact=None)
        return replace(self, redact=[*(self.redact or ()), *(path for paths in found for path in paths or ())])

    def blocked(self, blocked: dict[str, Any] | None) -> dict[str, Any] | None:
        """Why a run cannot go on: the text of the error may quote payloads."""
        if not blocked or self.words:
            return blocked
        return {k: v if k in _SHAPE_OF_BLOCKED else self.text("") for k, v in blocked.items()}


#: Code sees everything.
EVERYTHING = View()


def redacted(value: Any, paths: Sequence[tuple[str, ...]], at: tuple[str, ...] = ()) -> Any:
    """``value`` without the fields that one of ``paths`` leads to.

    The end of the way to a field, through lists, counts.
    """
    if any(at[-len(path) :] == path for path in paths):
        return REDACTED
    if isinstance(value, Mapping):
        return {key: redacted(part, paths, (*at, str(key))) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(part, paths, at) for part in value]
    return value


def redactions(workflow: str) -> Sequence[str] | None:
    """What the class of that name redacts, in any of its versions; None where this process does not have it."""
    found = workflows.known(workflow)
    if found is None:
        return None
    classes = [found] if issubclass(found, workflows.Workflow) else [*found.versions.values()]
    return list(dict.fromkeys(path for cls in classes for path in cls.redacted))
