"""What may drive a run beside plain code: a process of its own kind.

A process runs inside ``run`` and uses the same port as primitives do. People reach it by requests: the core asks it
to judge one, records what it becomes as the signal ``RECORDED_AS``, and hands that back, now and when the history is
replayed. To people a request is a resume, or the decision of a human task; here alone the first word is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from temporalex_django.core.human_tasks import Permits

#: A request as a message in an inbox, as a job of an activation, and the signal that it is in a history.
REQUEST: Final = "resume"
REQUESTED: Final = "ResumeRequested"
RECORDED_AS: Final = "__resume__"


#: Attributes of that signal beside its payload: the question that a decision answers, and the digest of what was shown.
QUESTION: Final = ("question", "shown")


def recorded_request(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A request from the attributes of the signal that it is in a history."""
    return {**attributes["payload"], **{name: attributes[name] for name in QUESTION if name in attributes}}


class RequestJudge(Protocol):
    """Attached with ``WorkflowRuntime.attach``. Deterministic, as workflow code is.

    What it tells whoever listens goes out by ``Journal.add_note``, what it shows by ``WorkflowRuntime.publish``; where
    it goes on when its run was moved here is ``RunContext.snapshot``.
    """

    def judge(self, request: dict[str, Any], permits: Permits) -> dict[str, Any]:
        """What a request (JSON data) becomes in the history. Not called on replay.

        ``request["person"]`` says whether it was sent by somebody whom ``permits`` can be asked about.

        Raises a ``TemporalexError`` that the caller gets; nothing may have changed then.
        """

    def apply(self, payload: dict[str, Any]) -> None:
        """Take what ``judge`` has let through, now or when the history was made."""
