"""How many of the generated programs ran each construct.

``TEST_SCALE=10 python -m tests.property.counts`` prints it.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from hypothesis import given

from tests.property import grammar, program
from tests.property.examples import examples
from tests.property.playing import play

#: What no example may be missing for long: steps, blocks, handlers, endings, and what is delivered.
CONSTRUCTS = (
    *(
        "activity",
        "local",
        "failing",
        "retry later",
        "hasty",
        "sleep",
        "sleep until",
        "wait",
        "draw",
        "headers",
        "patch",
        "deprecate",
        "publish",
        "condition",
    ),
    *("headers of start", "headers of signal", "headers of update", "headers of nothing"),
    *("approval", "overdue", "begins later", "child later", "instant", "deadline passed", "outage"),
    *("precise", "generator", "lock", "set", "forgotten: used", "forgotten: dropped", "forgotten: held"),
    *("operator: pause", "operator: unpause", "operator: skip", "operator: by hand", "operator: fail by hand"),
    *("operator: stumble", "operator: retry", "operator: edit", "operator: delete"),
    *("operator: redeliver", "operator: discard", "SignalFailed", "validator fails"),
    *("condition of state", "until cancelled", "update_state", "raise", "signal_external", "cancel_external"),
    *("strict", "undeclared: told", "undeclared: waited for"),
    *("parallel", "parallel with a limit", "race", "shield", "saga", "compensation", "child"),
    *("child to terminate", "child to abandon", "child to request_cancel", "phase", "phase stop", "phase timeout"),
    *(
        f"{how} {kind} handler"
        for kind in ("signal", "update")
        for how in ("plain", "sync", "async", "raising", "shapeless")
    ),
    *("validator refuses", "continue-as-new", "batch", "CancelRequested", "ActivityCancelled", "ActivityTimedOut"),
    *(
        "TimerFired",
        "TimerCancelled",
        "UpdateAccepted",
        "UpdateCompleted",
        "UpdateFailed",
        "ChildCompleted",
        "ChildFailed",
    ),
    *("WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTerminated", "ExternalFailed"),
)


def count() -> tuple[int, Counter[str]]:
    """The number of examples, and for each construct and kind of event how many of them ran it."""
    counts: Counter[str] = Counter()
    total = 0

    @examples(5)
    @given(grammar.program, grammar.schedule)
    def one(steps: Any, schedule: Any) -> None:
        nonlocal total
        total += 1
        program.REACHED.clear()
        played = play(steps, schedule)
        seen = program.REACHED | {event.kind for _, history in played.histories() for event in history}
        counts.update(seen | ({"batch"} if any(kind == "batch" for kind, *_ in schedule) else set()))

    one()
    return total, counts


def main() -> None:
    logging.disable(logging.CRITICAL)
    total, counts = count()
    print(f"{total} programs")
    for construct in sorted({*CONSTRUCTS, *counts}, key=lambda name: (-counts[name], name)):
        print(f"{counts[construct] / total:7.1%}  {construct}")


if __name__ == "__main__":
    main()
