"""The look-up of earlier runs that have the id of a start, for its policy about closed runs."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from temporalex_django.core.names import all_names
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart


def last_ended_status(start: RunStart, *, storage: DjangoStorage, besides: UUID | None = None) -> str | None:
    """Return the status of the last ended run of the class that has the id of ``start``, or None if none has ended.

    With scope ``version``, only runs of its version count. The chain ``besides`` is left out. One read.
    """
    names = all_names(start.workflow)
    condition, parameters = "", list[Any]([start.workflow_id, *names])
    if start.scope == "version":
        condition, parameters = " and i.version = %s", [*parameters, start.version]
    if besides is not None:
        condition, parameters = f"{condition} and c.id <> %s", [*parameters, besides]
    rows = storage.sql.select(
        "select i.status from temporalex_instance i join temporalex_chain c on c.run_id = i.id"
        f" where i.workflow_id = %s and i.workflow in ({', '.join(['%s'] * len(names))}){condition} and c.closed"
        " order by i.id desc limit 1",
        parameters,
        ("text",),
    )
    if not rows:
        return None
    return str(rows[0][0])
