"""The second argument of a run on a cluster: the facts with which it starts, in addition to its input."""

from __future__ import annotations

from typing import Any, TypedDict

from temporalex_django.core.typed_dicts import CarriedMessages


class StartFacts(TypedDict, total=False):
    """The facts with which a run starts, as plain data. A fact without a value is absent.

    ``version`` is the version of its class, and ``attempt`` its number in the chain. ``snapshot`` is data that the run
    starts with in addition to its input, such as the person who started it. ``carried`` has the messages that the
    previous run passed on. ``search_attributes`` have their stored form. ``scheduled_for`` is the time of the slot of a
    schedule. ``id`` and ``parent`` are the business ids, if the cluster knows the runs under other ids. ``run`` is the
    run id that the code sees, if it differs from that of the cluster. ``headers`` travel with the run.
    """

    id: str
    run: str
    parent: str | None
    version: int
    attempt: int
    snapshot: dict[str, Any]
    carried: CarriedMessages
    search_attributes: dict[str, Any]
    scheduled_for: str
    headers: dict[str, str]
