"""Processes: the drivers of runs whose steps are declared, where a plain workflow has code in ``run``.

A process runs inside ``run`` and uses the same ``WorkflowRuntime`` as primitives do. People reach it by requests. The
core asks its request judge about a request and records the accepted request as the signal ``RECORDED_AS``. Then it
passes that signal to the judge, now and in each replay. For people a request is a resume, or the decision of a human
task. In the core, only this module uses the word "resume", which stored names contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from temporalex_django.core.human_tasks import Permits

#: The kind of a request as a message in an inbox, as a job of an activation, and the name of its signal in a history.
REQUEST: Final = "resume"
REQUESTED: Final = "ResumeRequested"
RECORDED_AS: Final = "__resume__"


#: Attributes of that signal beside its payload: the question of a decision, and the digest of the page that people saw.
QUESTION: Final = ("question", "shown")


def recorded_request(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request that was accepted, in the form that its judge got, from the signal that records it.

    ``attributes`` are the attributes of the event ``SignalReceived``.
    """
    return {**attributes["payload"], **{name: attributes[name] for name in QUESTION if name in attributes}}


class RequestJudge(Protocol):
    """The part of a process that judges requests, attached with ``WorkflowRuntime.attach``.

    It must be deterministic, as workflow code is. It sends notices with ``Journal.add_note`` and publishes its state
    with ``WorkflowRuntime.publish``. After a move, ``RunContext.snapshot`` has the state from which it continues.
    """

    def judge(self, request: dict[str, Any], permits: Permits) -> None:
        """Raise a ``TemporalexError`` if the request (JSON data) is not possible, or its sender may not make it.

        The error is for the sender; nothing may have changed then. ``request["person"]`` is True if a person sent it.
        ``permits(word, sender)`` says whether a word for candidates includes that person. A request that the history
        has accepted is not judged.
        """

    def build_payload(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the payload that the history records for a request, which ``judge`` or the history has accepted.

        Raises a ``TemporalexError`` if nothing takes the request.
        """

    def apply(self, payload: dict[str, Any]) -> None:
        """Apply a payload from ``build_payload``, of this activation or from the history."""
