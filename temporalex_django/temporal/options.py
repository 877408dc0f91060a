"""The options that the runs of one plugin share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.messages.sender import Judge
from temporalex_django.errors import UnknownWorkflow
from temporalex_django.temporal.payloads import Payloads

T = TypeVar("T")


def call(function: Callable[[], T]) -> T:
    """Call ``function`` and return its value, without a limit."""
    return function()


class CodeRunner(Protocol):
    """The protocol of a function that calls workflow code, and may interrupt code that does not come to a wait."""

    def __call__(self, function: Callable[[], T], /) -> T:
        """Call ``function`` and return its value. Raises ``DeadlockDetected`` after an interruption."""


def find_class(name: str, version: int | None) -> type[Workflow]:
    """Return the class of a run of that name and version. A run without a version was started by another program.

    Raises ``UnknownWorkflow``.
    """
    if version is not None:
        return workflows.class_for_run(name, version)
    workflow = workflows.find(name)
    if not issubclass(workflow, Workflow):
        raise UnknownWorkflow(
            f"a run of {name!r} was started without a version: start it with a handle of this package"
        )
    return workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The options of a plugin that its runs read.

    - ``judge`` decides who may send which message; see ``Executor.activate``.
    - ``queue_name(queue)`` returns the task queue of the cluster for a queue of this package.
    - ``workflow_id(id)`` returns the id of the cluster for a business id.
    - ``find_class(name, version)`` returns the class of a run.
    - ``unexpected_error`` is the setting of that name.
    - ``run_code`` calls workflow code. Code that it interrupts has to end within the 2 seconds of the SDK.
    """

    payloads: Payloads
    judge: Judge | None = None
    queue_name: Callable[[str], str] = str
    workflow_id: Callable[[str], str] = str
    find_class: Callable[[str, int | None], type[Workflow]] = field(default=find_class)
    unexpected_error: str = "fail"
    run_code: CodeRunner = call
