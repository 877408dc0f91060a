"""Four eyes of a graph that moves to another version, which may lack the steps that people have decided."""

from __future__ import annotations

import pytest

from temporalex_django import Approval, Done, GraphWorkflow, Unique, VersionedWorkflow, errors
from temporalex_django.models import HumanTask
from temporalex_django.operations.base import storage
from temporalex_django.operations.run_lookup import find_run
from temporalex_django.operations.runs.control import Move
from tests.support.client_flows import drain
from tests.support.graphs import leads
from tests.support.people import stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("moves, which a cluster refuses")]

MAY = "auth.change_group"
first = Approval(role=MAY, key="first")
second = Approval(role=MAY, key="second", four_eyes=True)


class Moving(VersionedWorkflow):
    name = "test.FourEyesMoving"

    class V1(GraphWorkflow):
        unique = Unique(key="foureyesmoving")
        initial = first
        transitions = {**leads(first, approved=second, rejected=Done), **leads(second, approved=Done, rejected=Done)}

    class V2(GraphWorkflow):
        version = 2
        unique = Unique(key="foureyesmoving")
        initial = second
        transitions = {**leads(second, approved=Done, rejected=Done)}

    versions = {1: V1, 2: V2}
    current = 1


@pytest.mark.parametrize("turns", [0, 1])
def test_who_started_and_who_decided_stay_shut_out(turns: int) -> None:
    ann, bob, cleo = stored("ann", MAY, "temporalex_django.start_instance"), stored("bob", MAY), stored("cleo", MAY)
    handle = Moving.start("1", {}, version=1, by=ann)
    if turns:
        drain()
        handle.decide("approved", by=bob)
        drain()
    target = find_run("foureyesmoving::1", storage=storage())
    moved = Move(target, version=2, names={"first": ""}).execute()
    assert moved.moves, moved.why
    drain()

    task = HumanTask.objects.get(closed_at=None)
    assert (task.key, task.requested_by_key, task.requested_by_name) == ("second", str(ann.pk), "ann")
    for user in (ann, bob) if turns else (ann,):
        with pytest.raises(errors.FourEyes, match=f"{user} may not decide"):
            handle.decide("approved", by=user)
        with pytest.raises(errors.FourEyes):
            Moving.resume("1", "approved", by=user)
    handle.decide("approved", by=cleo)
    drain()
    assert handle.describe().status == "completed"
