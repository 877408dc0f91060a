"""The table of primitives: how each is used, and in which places it may be called.

There are two sorts of places. The *units* are the coroutines of a run. A *pure context* is a function that the executor
calls outside of any unit, such as a validator. A replay does not call these functions again, or calls them at other
moments. A random number or a command in them would make live and rebuilt runs differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, get_args

UnitKind = Literal["run", "sync handler", "async handler", "branch"]
PureContext = Literal[
    "validator",
    "predicate",
    "update_state closure",
    "transition",
    "publish function",
    "query",
    "workflow that is being evicted",
]
#: The code that uses a primitive: its value is awaited, entered, or simply there.
Usage = Literal["await {}(...)", "async with {}():", "{}(...)"]

AWAIT: Final = "await {}(...)"
ASYNC_WITH: Final = "async with {}():"
AT_ONCE: Final = "{}(...)"

UNIT_KINDS: Final[tuple[UnitKind, ...]] = get_args(UnitKind)
#: Pure contexts in which no run is active. A primitive that may read there still finds no run (``OutsideWorkflow``).
CONTEXTS_WITHOUT_RUN: Final[frozenset[PureContext]] = frozenset({"query", "workflow that is being evicted"})
#: Pure contexts in which a run is active. In a publish function the same is allowed as in a predicate.
CONTEXTS_OF_RUN: Final[tuple[PureContext, ...]] = ("validator", "predicate", "update_state closure", "transition")
#: A closure gets all that it needs as its argument. A transition runs again when a process is read from its history. So
#: these two may not even read.
_READING_CONTEXTS: Final[frozenset[PureContext]] = frozenset(
    {"validator", "predicate", "publish function", *CONTEXTS_WITHOUT_RUN}
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Primitive:
    """One row of the table.

    - ``acts`` is False for a primitive that reads and changes nothing. All others need a unit.
    - ``usage`` is the code that uses it, with ``{}`` for its name.
    - ``refusals`` has the kinds of units in which it may not be called, with the advice for the author.
    - ``pure_contexts`` are the pure contexts in which it may be called.
    """

    name: str
    usage: Usage
    acts: bool = True
    refusals: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pure_contexts: frozenset[PureContext] = frozenset()

    def is_allowed(self, place: UnitKind | PureContext) -> bool:
        """Return True if the primitive may be called in a unit of that kind, or in that pure context."""
        if place in UNIT_KINDS:
            return place not in self.refusals
        return place in self.pure_contexts and place not in CONTEXTS_WITHOUT_RUN


#: The call of an activity, under the name of the activity. ``api.task`` makes such a call, too.
ACTIVITY: Final = Primitive(name="activity", usage=AWAIT)

SLEEP: Final = Primitive(name="sleep", usage=AWAIT)
SLEEP_UNTIL: Final = Primitive(name="sleep_until", usage=AWAIT)
TASK: Final = Primitive(name="task", usage=AWAIT)
WAIT_FOR_SIGNAL: Final = Primitive(name="wait_for_signal", usage=AWAIT)
APPROVAL: Final = Primitive(name="approval", usage=AWAIT)
PUBLISH_STATE: Final = Primitive(name="publish_state", usage=AT_ONCE)
SET_SEARCH_ATTRIBUTES: Final = Primitive(name="set_search_attributes", usage=AT_ONCE)
NOW: Final = Primitive(name="now", usage=AT_ONCE, acts=False, pure_contexts=_READING_CONTEXTS)
# A replay does not run validators, so a draw there would shift the sequence of numbers.
RANDOM: Final = Primitive(name="random", usage=AT_ONCE)
UUID4: Final = Primitive(name="uuid4", usage=AT_ONCE)
PATCHED: Final = Primitive(name="patched", usage=AT_ONCE)
DEPRECATE_PATCH: Final = Primitive(name="deprecate_patch", usage=AT_ONCE)
PHASE: Final = Primitive(
    name="phase",
    usage=AWAIT,
    refusals={
        "sync handler": "a handler is itself part of a phase; return Stop(state) and open the next phase in run",
        "async handler": "a handler is itself part of a phase; return Stop(state) and open the next phase in run",
        "branch": "open the phase in run, before or after the parallel part",
    },
)
PARALLEL: Final = Primitive(name="parallel", usage=AWAIT)
RACE: Final = Primitive(name="race", usage=AWAIT)
UPDATE_STATE: Final = Primitive(
    name="update_state",
    usage=AWAIT,
    refusals={
        "run": "in run, use the state that phase returns",
        "sync handler": "a sync handler gets the state as an argument and returns the new one",
        "branch": "collect the branches' results and call it once in the async handler itself",
    },
)
WAIT_CONDITION: Final = Primitive(name="wait_condition", usage=AWAIT)
CHILD: Final = Primitive(name="child", usage=AWAIT)
SIGNAL_EXTERNAL: Final = Primitive(name="signal_external", usage=AWAIT)
CANCEL_EXTERNAL: Final = Primitive(name="cancel_external", usage=AWAIT)
CANCEL_REQUESTED: Final = Primitive(name="cancel_requested", usage=AT_ONCE, acts=False, pure_contexts=_READING_CONTEXTS)
WAIT_CANCELLED: Final = Primitive(name="wait_cancelled", usage=AWAIT)
SHIELD: Final = Primitive(name="shield", usage=ASYNC_WITH)
SAGA: Final = Primitive(name="saga", usage=ASYNC_WITH)
INFO: Final = Primitive(name="info", usage=AT_ONCE, acts=False, pure_contexts=_READING_CONTEXTS)
# The sender and the headers of an update are known in its validator. A predicate belongs to no message.
SENDER: Final = Primitive(name="sender", usage=AT_ONCE, acts=False, pure_contexts=frozenset({"validator"}))
HEADERS: Final = Primitive(name="headers", usage=AT_ONCE, acts=False, pure_contexts=frozenset({"validator"}))

#: The functions of ``api``, in the order of that module.
PRIMITIVES: Final[tuple[Primitive, ...]] = (
    *(SLEEP, SLEEP_UNTIL, TASK, WAIT_FOR_SIGNAL, APPROVAL, PUBLISH_STATE, SET_SEARCH_ATTRIBUTES, NOW, RANDOM, UUID4),
    *(PATCHED, DEPRECATE_PATCH, PHASE, PARALLEL, RACE, UPDATE_STATE, WAIT_CONDITION, CHILD, SIGNAL_EXTERNAL),
    *(CANCEL_EXTERNAL, CANCEL_REQUESTED, WAIT_CANCELLED, SHIELD, SAGA, INFO, SENDER, HEADERS),
)
