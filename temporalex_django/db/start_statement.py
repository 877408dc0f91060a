"""The SQL that starts runs: one statement inserts a chain and its first run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from temporalex_django.db.sql_columns import CHAINS, NEW_CHAIN, OUTBOX, RUNS
from temporalex_django.engine.contracts.dialect import Placeholder
from temporalex_django.engine.run_start import RunStart

UNLESS_OPEN: Final = "on conflict (open_key) where open_key is not null do nothing"
#: New chains, with the facts about their runs by which ids in wider scopes are compared.
SCOPED_CHAIN: Final = CHAINS.pick_columns(*NEW_CHAIN.column_names, scope="text", workflow_id="text", workflow="text")
# Joins name the key of the chain, since its current run has no index. "is not null" lets prepared plans use the partial
# index.
SCOPED_CHAIN_INSERT: Final = (
    SCOPED_CHAIN.insert + f" where v.scope not in ('global', 'workflow') or not exists (select 1 from {RUNS.name} i"
    f" join {CHAINS.name} c on c.id = i.chain_id and c.run_id = i.id where i.workflow_id = v.workflow_id"
    " and (v.scope = 'global' or i.workflow = v.workflow) and c.open_key is not null)"
    f" {UNLESS_OPEN}"
)
#: Rows of the outbox that are inserted.
OUTGOING: Final = OUTBOX.pick_columns(
    *("id", "chain_id", "destination", "kind", "body", "sender", "tries", "created_at", "due_at")
)
#: The way in which a start names the time at which its run begins; empty if it begins at once.
DelayKind = Literal["", "at", "after"]


class StartShape(NamedTuple):
    """The properties in which the SQL of starts differs.

    - ``columns``: the columns of the run that have a value.
    - ``test``: an SQL test that no open run has the same id in a wider scope, or an empty string.
    - ``now``: an SQL expression for the present time.
    - ``delay``: how the start names the time at which the run begins.
    - ``keyed``: the chain has an open key.
    - ``shared``: another start could have the same key, so there is a conflict to check.
    - ``bounded``: the statement itself limits its wait for locks.
    - ``ends``: the first run has a timeout.
    - ``limited``: the first run is timed out if it has not begun by a given time.
    - ``expires``: the whole chain has a timeout.
    - ``remote``: the run lives on a cluster, and a row of the outbox starts it there. No turn takes the chain, so it is
      neither ``ends`` nor ``limited``.
    """

    columns: tuple[str, ...]
    test: str
    now: str
    delay: DelayKind
    keyed: bool
    shared: bool
    bounded: bool
    ends: bool
    limited: bool
    expires: bool
    remote: bool = False


def delay_kind(start: RunStart) -> DelayKind:
    """Return the way in which ``start`` names the time at which its run begins."""
    if start.start_at is not None:
        return "at"
    if start.start_delay is not None:
        return "after"
    return ""


def delay_parameters(start: RunStart) -> list[Any]:
    """Return the parameters of the SQL expression for the begin of the run, without the parameters of the clock."""
    return [value for value in (start.start_at, start.start_delay) if value is not None]


@lru_cache(maxsize=256)
def start_statement(placeholder: Placeholder, shape: StartShape) -> str:
    """Return the SQL that starts runs of this shape. The result is cached, since there are few shapes.

    ``placeholder`` is that of the dialect. The parameters are, in this order:

    - the ids of the chain and the run, and the queue
    - the backend (``remote``), or the time at which the run begins and the last time to begin (``limited``)
    - that time again and the timeout in seconds (``ends``), and the last time to begin (``limited``)
    - the open key (``keyed``), the limit of the wait (``bounded``), and the parameters of ``test``
    - the columns of the run, and the present time
    - the time at which the run begins (``delay``), that time again and the timeout in seconds (``expires``)
    - the present time twice, with the columns of the row of the outbox in between (``remote``)
    - the time at which the run begins (``delay``), or the present time and the seconds to hold the row (``remote``)
    """
    now = shape.now
    begin = _begin_expression(placeholder, shape)
    later = f"{begin} + %s * interval '1 second'"
    chain = CHAINS.pick_columns(
        *("id", "run_id", "queue", "backend" if shape.remote else "due_at"),
        *(["deadline"] * (shape.ends or shape.limited)),
        *(["open_key"] * shape.keyed),
    )
    run = RUNS.pick_columns(
        *(*shape.columns, "created_at", *(["starts_at"] * bool(shape.delay)), *(["expires_at"] * shape.expires)),
        *(["mirrored_at"] * shape.remote),
    )
    times = {"created_at": now, "starts_at": begin, "expires_at": later, "mirrored_at": now}
    bound = "from (select set_config('lock_timeout', %s, true)) bound" if shape.bounded else ""
    source = f"{bound} {f'where {shape.test}' if shape.test else ''}"
    due = f"least({begin}, {placeholder('timestamptz')})" if shape.limited else begin
    limits = [later] * shape.ends + [placeholder("timestamptz")] * shape.limited
    first = chain.insert_parameters(placeholder, source, due_at=due, deadline=f"least({', '.join(limits)})")
    if shape.remote:
        due_at = begin if shape.delay else f"{now} + %s * interval '1 second'"
        row = OUTGOING.insert_parameters(placeholder, "from r", created_at=now, due_at=due_at)
        second = run.insert_parameters(placeholder, "from c", **times)
        return f"with c as ({first} {UNLESS_OPEN} returning id), r as ({second} returning id) {row}"
    # No other start can have its key: nothing to wait for, and nothing to check.
    if not shape.shared:
        return f"with c as ({first}) {run.insert_parameters(placeholder, '', **times)}"
    second = run.insert_parameters(placeholder, "from c", **times)
    return f"with c as ({first} {UNLESS_OPEN} returning id) {second}"


def _begin_expression(placeholder: Placeholder, shape: StartShape) -> str:
    match shape.delay:
        case "at":
            return f"greatest({shape.now}, {placeholder('timestamptz')})"
        case "after":
            return f"{shape.now} + %s * interval '1 second'"
        case _:
            return shape.now
