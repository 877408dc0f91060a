"""What an id means: a run's before a business id, and of an id that several workflows used the one open run."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection

from temporalex_django import ContinueAsNew, Ok, Unique, Workflow, WorkflowHandle, api, errors, query
from temporalex_django.authoring.requests import RunAddress
from temporalex_django.client import _find_target
from temporalex_django.models import Chain, Instance
from tests.support.client_flows import drain
from tests.support.hosts import environment


class Waits(Workflow):
    name = "ids.Waits"

    async def run(self, args):
        return Ok(await api.wait_for_signal("go"))


class WaitsToo(Workflow):
    name = "ids.WaitsToo"

    async def run(self, args):
        return Ok(await api.wait_for_signal("go"))


class Sender(Workflow):
    name = "ids.Sender"

    async def run(self, args):
        try:
            if args[0] == "signal":
                await api.signal_external(args[1], "go", "hello")
            elif args[0] == "cancel":
                await api.cancel_external(args[1])
            else:
                await api.child(Waits, id=args[1])
        except (errors.AmbiguousId, errors.WorkflowNotFound, errors.WorkflowClosed) as exc:
            return Ok({"error": type(exc).__name__, "candidates": getattr(exc, "candidates", None)})
        except errors.ChildWorkflowFailure as exc:
            return Ok({"error": exc.type})
        return Ok({"error": None})


def spellings(run_id: str) -> list[str]:
    return [run_id, run_id.upper(), run_id.replace("-", ""), f"{{{run_id}}}", f"urn:uuid:{run_id}"]


@pytest.fixture(params=["memory", "database"])
def env(request):
    if request.param == "database":
        request.getfixturevalue("db")
    yield from environment(request.param)


# -- run ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_id_of_a_run_is_no_business_id():
    run = Waits.start(id="w").describe().run_id

    for text in spellings(run):
        with pytest.raises(errors.InvalidId, match="is the id of a run"):
            WaitsToo.start(id=text)
        with pytest.raises(errors.InvalidId):
            WaitsToo.signal_with_start("go", None, id=text)
        with pytest.raises(errors.InvalidId):
            Waits.signal_with_start("go", None, id=text)
        assert WorkflowHandle(text).describe().id == "w"
    assert Chain.objects.count() == 1


@pytest.mark.django_db
def test_other_uuids_are_legal():
    order = uuid4()

    handle = Waits.start(id=str(order))

    assert WorkflowHandle(order).describe().run_id == handle.describe().run_id
    assert WorkflowHandle(str(order)).describe().workflow == "ids.Waits"


@pytest.mark.django_db
def test_a_run_id_is_looked_up_before_a_business_id():
    run = Waits.start(id="w").describe().run_id
    shadow = WaitsToo.start(id="s").describe().run_id
    # as a start could leave it before it was refused
    Instance.objects.filter(pk=shadow).update(workflow_id=run)

    assert WorkflowHandle(run).describe().id == "w"
    assert WorkflowHandle(run, workflow=WaitsToo).describe().run_id == shadow


def test_run_ids_in_an_environment(env):
    handle = env.start(Waits, id="w")

    for text in spellings(handle.run_id):
        with pytest.raises(errors.InvalidId, match="is the id of a run"):
            env.start(WaitsToo, id=text)
        with pytest.raises(errors.InvalidId):
            env.signal_with_start(WaitsToo, "go", id=text)
        assert env.handle(text).id == "w"
    assert env.handle(env.start(Waits, id=str(uuid4())).id).describe().workflow == "ids.Waits"


class Rounds(Workflow):
    name = "ids.Rounds"

    @query("round")
    @staticmethod
    def which(state):
        return state

    async def run(self, args):
        api.publish_state(args)
        await api.wait_for_signal("go")
        return ContinueAsNew(args + 1) if args < 3 else Ok(args)


def asked(handle):
    """What a handle says of the run that it is for."""
    started = handle.history()[0].attributes["args"]
    return [
        handle.run_id,
        handle.status,
        handle.describe().run_id,
        handle.describe().status,
        handle.query("round"),
        started,
    ]


def two_rounds(host, start):
    chain = start()
    chain.signal("go")
    host()
    return chain, chain.run_ids


def test_a_run_id_shows_that_run_in_an_environment(env):
    chain, runs = two_rounds(lambda: None, lambda: env.start(Rounds, 1, id="r"))

    old, new = (env.handle(run) for run in runs)

    assert asked(old) == [runs[0], "continued_as_new", runs[0], "continued_as_new", 1, 1]
    assert asked(new) == asked(chain) == asked(env.handle("r")) == [runs[1], "waiting", runs[1], "waiting", 2, 2]
    assert old.run_ids == runs
    assert (old != new, old == env.handle(runs[0].upper())) == (True, True)
    old.signal("go")  # messages go to the chain all the same
    assert (chain.query("round"), new.status, len(chain.run_ids)) == (3, "continued_as_new", 3)
    chain.signal("go")
    assert old.result() == new.result() == 3


@pytest.mark.django_db(transaction=True)
def test_a_run_id_shows_that_run():
    """The same, of a handle as it is used outside of tests."""

    def start():
        handle = Rounds.start(1, id="r")
        drain()
        return handle

    chain, runs = two_rounds(drain, start)

    old, new = (WorkflowHandle(run) for run in runs)

    assert asked(old) == [runs[0], "continued_as_new", runs[0], "continued_as_new", 1, 1]
    assert asked(new) == asked(chain) == [runs[1], "waiting", runs[1], "waiting", 2, 2]
    assert old.run_ids == runs
    for _ in range(2):
        old.signal("go")
        drain()
    assert old.result() == new.result() == 3


@pytest.mark.parametrize("ask", ["signal", "cancel"])
def test_a_run_reaches_another_by_its_run_id(env, ask):
    other = env.start(Waits, id="w")

    assert env.start(Sender, [ask, other.run_id.upper()]).result() == {"error": None}

    assert other.status == ("completed" if ask == "signal" else "cancelled")
    closed = env.start(Sender, [ask, other.run_id]).result()
    assert closed["error"] == "WorkflowClosed"


def test_a_child_cannot_have_the_id_of_a_run(env):
    other = env.start(Waits, id="w")

    assert env.start(Sender, ["child", other.run_id]).result() == {"error": "InvalidId"}
    assert env.handle(other.run_id).status == "waiting"


# -- ids of several workflows ------------------------------------------------------------------------------------------


def test_the_open_run_of_an_id_wins(env):
    closed = env.start(Waits, id="x")
    closed.terminate()
    open_one = env.start(WaitsToo, id="x")
    assert env.handle("x").run_id == open_one.run_id

    assert env.start(Sender, ["signal", "x"]).result() == {"error": None}

    with pytest.raises(errors.AmbiguousId) as several:  # now none is open
        env.handle("x")
    assert [c["workflow"] for c in several.value.candidates] == ["ids.Waits", "ids.WaitsToo"]
    assert env.handle("x", workflow=Waits).run_id == closed.run_id
    assert env.start(Sender, ["signal", "x"]).result()["error"] == "WorkflowClosed"
    env.start(Waits, id="x")
    assert env.handle("x").describe().workflow == "ids.Waits"


def test_open_runs_of_several_workflows(env):
    """An id that is unique within its workflow only."""

    class Own(Workflow):
        name = "ids.Own"
        unique = Unique("own", scope="workflow")

        async def run(self, args):
            return Ok(await api.wait_for_signal("go"))

    class Other(Own):
        name = "ids.Other"

    first, second = env.start(Own, value="1"), env.start(Other, value="1")

    answer = env.start(Sender, ["signal", "own::1"]).result()

    assert answer["error"] == "AmbiguousId"
    assert {c["run_id"] for c in answer["candidates"]} == {first.run_id, second.run_id}
    with pytest.raises(errors.AmbiguousId):
        env.handle("own::1")
    second.terminate()
    assert env.start(Sender, ["signal", "own::1"]).result() == {"error": None}
    assert first.status == "completed"


@pytest.mark.django_db
def test_handles_of_an_id_of_several_workflows(django_assert_num_queries):
    first = Waits.start(id="x")
    with django_assert_num_queries(1):
        _find_target(RunAddress(id="x"), None)
    first.terminate()
    second = WaitsToo.start(id="x")
    assert WorkflowHandle("x").describe().run_id == second.describe().run_id
    second.terminate()

    with pytest.raises(errors.AmbiguousId) as several:
        WorkflowHandle("x").signal("go")

    assert [(c["workflow"], c["status"]) for c in several.value.candidates] == [
        ("ids.Waits", "terminated"),
        ("ids.WaitsToo", "terminated"),
    ]
    assert Waits.handle("x").describe().run_id == first.describe().run_id
    assert WaitsToo.handle("x").describe().run_id == second.describe().run_id
    assert WorkflowHandle(several.value.candidates[0]["run_id"]).describe().workflow == "ids.Waits"


@pytest.mark.django_db
def test_old_runs_of_other_workflows_do_not_hide_the_newest_of_one():
    for _ in range(3):
        Waits.start(id="x").terminate()
    newest = Waits.start(id="x")
    newest.terminate()

    assert WorkflowHandle("x").describe().run_id == newest.describe().run_id


@pytest.mark.django_db
def test_export_takes_a_run_id_before_a_business_id(tmp_path):
    run = Waits.start(id="w").describe().run_id
    WaitsToo.start(id="s")
    drain()
    Instance.objects.filter(workflow_id="s").update(workflow_id=run)

    call_command("temporalex", "export", run, output=str(tmp_path), verbosity=0)

    assert [file.name for file in tmp_path.iterdir()] == [f"ids.Waits-{run}.json"]
    assert json.loads(next(tmp_path.iterdir()).read_text())


@pytest.mark.postgres
@pytest.mark.django_db
def test_looking_an_id_up_reads_an_index_however_many_runs_it_has():
    for number in range(300):
        Waits.start(id=f"w-{number}")
    with connection.cursor() as cursor:
        cursor.execute(
            "analyze temporalex_instance; analyze temporalex_chain"
        )  # the plan depends on what the tables held last
        cursor.execute("set local enable_seqscan = off")
        cursor.execute(
            "explain select i.id from temporalex_instance i join temporalex_chain c on c.id = i.chain_id"
            " where i.workflow_id = 'x' order by i.workflow desc, i.id desc limit 1"
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "temporalex_instance_business" in plan
    assert "Sort" not in plan
