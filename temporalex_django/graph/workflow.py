"""``GraphWorkflow``: a process as a graph of steps, on the same durable runtime as function workflows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar

from temporalex_django.authoring.activity_options import RetryPolicy
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core import current
from temporalex_django.core.determinism import guard
from temporalex_django.core.results import Ok
from temporalex_django.errors import WorkflowDefinitionError
from temporalex_django.graph import definition, render
from temporalex_django.graph import instance as snapshot
from temporalex_django.graph.definition import Edge, Graph
from temporalex_django.graph.durable_run import GraphRun, activity_of, options_of
from temporalex_django.graph.instance import Instance
from temporalex_django.graph.progress import seconds_between
from temporalex_django.graph.steps import StepRef, name_of

_RESERVED_ATTRIBUTES = frozenset(
    {"run", "graph", "edges", "predecessors", "to_mermaid", "to_dot", "names", "options", "answer", "handle_query"}
)


class GraphWorkflow(Workflow, abstract=True):
    """The base class of graph workflows. A subclass sets the attributes ``unique``, ``initial`` and ``transitions``.

    - ``unique``: the business key, such as ``Unique(key="order")``.
    - ``initial``: the first step, a subclass of ``Step`` or a wait such as ``Approval``.
    - ``transitions``: maps ``(step, event)`` to the step that follows, to a list of steps, or to ``Done``.
    - ``retry``: the policy of steps that have none.

    The result of a run is the data of its steps, by their keys. The graph is checked when the class is defined. All
    violations are in one ``WorkflowDefinitionError``, and an invalid class is not registered. See page "Write a process
    as a graph" of the documentation.
    """

    initial: ClassVar[Any]
    transitions: ClassVar[Mapping[Any, Any]] = {}
    retry: ClassVar[RetryPolicy | None] = None

    cancels_at_once: ClassVar[bool] = True
    _graph: ClassVar[Graph | None] = None
    #: The names and options of the activities that run the steps, by step number.
    names: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[dict[str, Any], ...]] = ()

    @classmethod
    def _external_close_signals(
        cls, status: str, started_at: datetime | None, ended_at: datetime
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "workflow_stopped", {"status": status, "duration": seconds_between(started_at, ended_at)}

    @classmethod
    def _problems(cls) -> Iterator[str]:
        yield from super()._problems()
        if cls.unique is None:
            yield 'unique: a graph needs a business key: unique = Unique(key="orderid")'
        for name in sorted(_RESERVED_ATTRIBUTES & cls.__dict__.keys()):
            yield f"{name}: graphs reserve this name: rename the attribute"
        graph, problems = definition.build(cls)
        if graph is not None:
            problems = [*cls._prepare(graph)]
        yield from problems

    @classmethod
    def _prepare(cls, graph: Graph) -> Iterator[str]:
        """Store the graph if the options of all steps are valid; yield a sentence for each problem."""
        names, options = [], []
        for step in graph.steps:
            is_activity = not step.waits and step.instant is None
            try:
                options.append(options_of(step, cls) if is_activity else {})
            except WorkflowDefinitionError as exc:
                yield f"step {name_of(step)}: {exc.message}"
                continue
            names.append(activity_of(step).name if is_activity else "")
        if len(names) == len(graph.steps):
            cls._graph, cls.names, cls.options = graph, tuple(names), tuple(options)

    async def run(self, args: dict[str, Any] | None) -> Any:
        """Run the graph to its end, and return the data of its steps by their keys.

        ``args`` is the initial context, a dict or None. This method is the workflow code of all graphs, see decision
        31. Raises the error of a step that failed.
        """
        cls = type(self)
        runtime = current.active_runtime("run")
        info = runtime.run_context.info
        instance = snapshot.new_instance(
            cls, id=info.id, version=info.version, args=args, data=runtime.run_context.snapshot
        )
        for clause in instance.graph.clauses.values():
            # Dynamic transitions are workflow code, see decision 18.
            guard.watch(clause.route)
        final_instance = await GraphRun(runtime, instance, cls).drive()
        return Ok(final_instance.context.as_dict()["steps"])

    # -- introspection: copies, never the live structures --------------------------------------------------------------

    @classmethod
    def graph(cls) -> dict[StepRef, tuple[StepRef, ...]]:
        """Return the steps in topological order, each with the steps that may follow it directly."""
        graph = cls._require_graph()
        return {step: tuple(graph.refs(graph.next[i])) for i, step in enumerate(graph.steps)}

    @classmethod
    def edges(cls) -> tuple[Edge, ...]:
        """Return the transitions ``(source, event, targets, dynamic)``, one for each clause."""
        return cls._require_graph().edges()

    @classmethod
    def predecessors(cls, step: StepRef) -> frozenset[StepRef]:
        """Return the steps from which a transition leads to ``step``.

        The set is empty for the first step, and for a step that is not in the graph.
        """
        return cls._require_graph().predecessors(step)

    @classmethod
    def to_mermaid(cls, instance: Instance | None = None) -> str:
        """Return the graph as mermaid text. With an instance, the text shows the states of its steps."""
        return render.mermaid(cls._require_graph(), instance)

    @classmethod
    def to_dot(cls, instance: Instance | None = None) -> str:
        """Return the graph in the DOT language. With an instance, the text shows the states of its steps."""
        return render.dot(cls._require_graph(), instance)

    @classmethod
    def _require_graph(cls) -> Graph:
        """Raise ``WorkflowDefinitionError`` for a class without a graph."""
        if cls._graph is None:
            raise WorkflowDefinitionError(f"{cls.__name__} has no graph: subclass it with initial and transitions")
        return cls._graph
