"""Versioned workflows: who runs what, and how open runs get from one version to another."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction

from temporalex_django import (
    Done,
    Event,
    GraphWorkflow,
    Ok,
    Step,
    Unique,
    VersionedWorkflow,
    WaitForEvent,
    Workflow,
    api,
    errors,
)
from temporalex_django.authoring import workflow as workflows
from temporalex_django.backends.tables import inline_turn
from temporalex_django.models import ActivityTask, Chain, Instance, OperatorAction
from temporalex_django.operations.base import storage
from temporalex_django.operations.run_lookup import find_by_version, find_run
from temporalex_django.operations.runs.control import Move
from temporalex_django.testing import DjangoEnvironment
from tests.support.client_flows import drain

pytestmark = pytest.mark.django_db(transaction=True)


def step(name: str) -> type[Step]:
    def execute(self, instance, config, context):
        return Event("ok", {"by": instance.version, "saw": sorted(context.steps)})

    return type(name, (Step,), {"events": ("ok",), "execute": execute, "__module__": __name__})


Pack, Wrap, Label, Send = step("Pack"), step("Wrap"), step("Label"), step("Send")
call = WaitForEvent("call", timeout=timedelta(days=2))


class Parcel(VersionedWorkflow):
    name = "test.Parcel"

    class V1(GraphWorkflow):
        unique = Unique(key="parcel")
        initial = Pack
        transitions = {(Pack, "ok"): call, (call, "call"): Send, (call, "timeout"): Done, (Send, "ok"): Done}

    class V2(GraphWorkflow):
        version = 2
        unique = Unique(key="parcel")
        initial = Wrap
        transitions = {
            (Wrap, "ok"): call,
            (call, "call"): Label,
            (call, "timeout"): Done,
            (Label, "ok"): Send,
            (Send, "ok"): Done,
        }

    versions = {1: V1, 2: V2}
    current = 2

    @staticmethod
    def version_for(versions, options):
        return {"old": 1}.get(options.get("customer"))


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("temporalex", *arguments, stdout=out)
    return out.getvalue()


def test_a_start_runs_the_version_asked_for_then_the_chosen_one_then_the_current_one():
    """HE-150 HE-157 HE-159 HE-160 HE-161 HE-163."""
    assert Parcel.start("1", {}).describe().version == 2
    assert Parcel.start("2", {}, customer="old").describe().version == 1
    assert Parcel.start("3", {}, customer="old", version=2).describe().version == 2
    with pytest.raises(errors.UnknownVersion, match=r"test.Parcel has no version 3 \(it has: 1, 2\)"):
        Parcel.start("4", {}, version=3)
    assert Instance.objects.count() == 3
    drain()
    assert [(h.id, h.describe().version) for h in Parcel.list()] == [
        ("parcel::3", 2),
        ("parcel::2", 1),
        ("parcel::1", 2),
    ]
    assert [handle.id for handle in Parcel.list(version=1)] == ["parcel::2"]
    assert Parcel.get("2").instance().context.steps.pack == {"by": 1, "saw": []}


def test_what_is_current_is_read_at_each_start_and_touches_no_run(monkeypatch):
    """HE-161."""
    first = Parcel.start("1", {})
    monkeypatch.setattr(Parcel, "current", 1)
    second = Parcel.start("2", {})
    drain()
    assert (first.describe().version, second.describe().version) == (2, 1)
    assert sorted(first.instance().context.steps) == ["wrap"]
    assert sorted(second.instance().context.steps) == ["pack"]


def test_versions_have_no_facade_of_their_own():
    """HE-151 HE-155 HE-156 HE-158."""
    for name in ("start", "resume", "get", "list", "cancel"):
        assert hasattr(Parcel, name)
        assert not hasattr(Parcel.V1, name)
    assert (Parcel.is_versioned(), Parcel.V1.is_versioned()) == (True, False)
    assert not hasattr(Parcel, "version")
    assert not hasattr(Parcel, "graph")
    assert Parcel.resolve_version() == (2, Parcel.V2)
    assert Parcel.V1.resolve_version(1) == (1, Parcel.V1)
    with pytest.raises(errors.UnknownVersion):
        Parcel.V1.resolve_version(2)


def test_one_value_is_one_run_whatever_the_version():
    """HE-134 HE-141."""
    Parcel.start("1", {}, version=1)
    with pytest.raises(errors.AlreadyRunning):
        Parcel.start("1", {}, version=2)


def test_with_scope_version_each_version_has_its_own():
    """HE-135 HE-141: then a value alone may mean two runs."""

    class Twice(VersionedWorkflow):
        name = "test.Twice"

        class V1(Workflow):
            unique = Unique(key="twice", scope="version")

            async def run(self, args):
                return Ok(await api.wait_for_signal("end"))

        class V2(Workflow):
            version = 2
            unique = Unique(key="twice", scope="version")

            async def run(self, args):
                return Ok(await api.wait_for_signal("end"))

        versions = {1: V1, 2: V2}
        current = 1

    Twice.start("1", None)
    Twice.start("1", None, version=2)
    with pytest.raises(errors.AlreadyRunning):
        Twice.start("1", None, version=2)
    with pytest.raises(errors.UnknownVersion, match=r"open in several versions \(1, 2\)"):
        Twice.get("1")
    Twice.get("1", version=1).signal("end", "one")
    drain()
    assert Twice.get("1", version=1).result(timeout=0) == "one"
    assert Twice.get("1").describe().version == 2


def test_a_run_whose_version_is_gone_is_blocked_and_says_so(monkeypatch):
    """HE-164: and goes on when the code is back."""
    handle = Parcel.start("1", {}, version=1)
    monkeypatch.setattr(Parcel, "versions", {2: Parcel.V2})
    drain()
    blocked = handle.describe().blocked
    assert blocked["code"] == "unknown_workflow"
    assert "a run of version 1 of 'test.Parcel' has no class in this process" in blocked["error"]
    listed = json.loads(command("versions", "--json"))
    assert [(one["workflow"], one["version"], one["open"], one["here"]) for one in listed] == [
        ("test.Parcel", 1, 1, False)
    ]
    monkeypatch.setattr(Parcel, "versions", {1: Parcel.V1, 2: Parcel.V2})
    handle.signal("poke")
    Chain.objects.update(due_at="2020-01-01T00:00Z")
    drain()
    assert handle.describe().blocked is None
    assert sorted(handle.instance().context.steps) == ["pack"]


def test_versions_in_use_are_listed():
    """HE-164."""
    Parcel.start("1", {}, version=1)
    Parcel.start("2", {})
    text = command("versions", "test.Parcel")
    assert "test.Parcel version 1: 1 open" in text
    assert "test.Parcel version 2: 1 open" in text
    assert "waiting for a worker: no live worker polls" in text
    assert command("versions", "Other") == "no open runs\n"


def waiting(*values: str) -> list:
    handles = [Parcel.start(value, {"for": value}, version=1) for value in values]
    drain()
    return handles


def test_runs_are_moved_to_another_version_with_all_they_know():
    """The run closes as continued as new, the next one goes on from the mapped snapshot with the other class."""
    (handle,) = waiting("1")
    old = handle.run_id
    text = command("migrate", "test.Parcel", "--from", "1", "--to", "2", "--map", "Pack=Wrap")
    assert "parcel::1  moved" in text
    assert [event.kind for event in type(handle)(old).history()][-1] == "WorkflowContinuedAsNew"
    assert handle.run_ids[0] == old
    assert (len(handle.run_ids), handle.describe().version) == (2, 2)
    drain()
    assert handle.describe().waiting_for == ["step wait_for_event: call or timeout"]
    assert handle.instance().context.initial == {"for": "1"}
    assert handle.instance().context.steps == {"wrap": {"by": 1, "saw": []}}
    Parcel.resume("1", "call")
    drain()
    assert handle.result(timeout=0)["label"] == {"by": 2, "saw": ["wait_for_event", "wrap"]}
    assert OperatorAction.objects.get().action == "move"


def test_a_version_means_the_present_run_and_a_list_names_each_chain_once():
    (handle,) = waiting("1")
    command("migrate", "test.Parcel", "--from", "1", "--to", "2", "--map", "Pack=Wrap")

    assert len(handle.run_ids) == 2
    assert Parcel.get("1", version=2).describe().version == 2
    with pytest.raises(errors.WorkflowNotFound):
        Parcel.get("1", version=1).describe()
    assert [one.id for one in Parcel.list()] == ["parcel::1"]


def test_a_timer_goes_on_where_it_was():
    """What was left of it is waited for, not the whole again."""
    env = DjangoEnvironment()
    handle = env.start(Parcel, {}, value="1", version=1)
    env.advance(timedelta(days=1))
    (due,) = [event.attributes["due"] for event in handle.history() if event.kind == "TimerStarted"]
    move = Move(find_run("parcel::1", storage=env.storage), version=2, names={"pack": "wrap"})
    move.storage = env.storage  # on the environment's clock
    assert move.execute().moves
    env.advance(timedelta(hours=23))
    (started,) = [event.attributes for event in env.handle("parcel::1").history() if event.kind == "TimerStarted"]
    assert (started["due"], started["step"]) == (due, "wait_for_event")
    env.advance(timedelta(hours=1))
    assert env.handle("parcel::1").status == "completed"


def test_a_rehearsal_says_what_would_happen_and_changes_nothing():
    handles = waiting("1", "2")
    text = command("migrate", "test.Parcel", "--from", "1", "--to", "2", "--map", "Pack=Wrap", "--dry-run")
    assert "2 of 2 runs would move" in text
    assert [handle.describe().version for handle in handles] == [1, 1]
    assert Instance.objects.count() == 2


def test_what_cannot_move_stays_and_says_why():
    """Each run by itself: the others move."""
    waiting("1")
    with pytest.raises(CommandError, match="1 run stays at version 1"):
        command("migrate", "test.Parcel", "--from", "1", "--to", "2")
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("temporalex", "migrate", "test.Parcel", "--from", "1", "--to", "2", "--json", stdout=out)
    (one,) = json.loads(out.getvalue())["runs"] if out.getvalue() else ({},)
    assert one["moves"] is False
    assert "version 2 has no step 'pack'" in one["why"]
    assert "--map pack=" in one["why"]


def test_a_step_in_progress_is_not_done_twice():
    """A run moves only when nothing of it is being tried."""
    Parcel.start("1", {}, version=1)
    with transaction.atomic():
        target = find_run("parcel::1", storage=storage())
        inline_turn.try_lock_run(target, storage=storage(), wait=1)
        inline_turn.advance(target, storage=storage())
    ActivityTask.objects.update(attempt=1)
    out = StringIO()
    with pytest.raises(CommandError):
        call_command(
            "temporalex", "migrate", "test.Parcel", "--from", "1", "--to", "2", "--map", "Pack=Wrap", stdout=out
        )
    assert "has started (attempt 1)" in out.getvalue()
    ActivityTask.objects.update(attempt=0)
    command("migrate", "test.Parcel", "--from", "1", "--to", "2", "--map", "Pack=Wrap")
    drain()
    assert sorted(Parcel.get("1").instance().context.steps) == ["wrap"]


def test_a_function_run_moves_only_when_its_history_replays_clean():
    class Letter(VersionedWorkflow):
        name = "test.Letter"

        class V1(Workflow):
            async def run(self, args):
                await api.sleep(5000)
                return Ok(1)

        class V2(Workflow):
            version = 2

            async def run(self, args):
                await api.sleep(5000)
                await api.wait_for_signal("go")
                return Ok(2)

        class V3(Workflow):
            version = 3

            async def run(self, args):
                return Ok(await api.wait_for_signal("go"))

        versions = {1: V1, 2: V2, 3: V3}
        current = 1

    handle = Letter.start(None, id="l")
    drain()
    run = handle.run_id
    with pytest.raises(CommandError):
        command("migrate", "test.Letter", "--from", "1", "--to", "3")
    assert handle.describe().version == 1
    command("migrate", "test.Letter", "--from", "1", "--to", "2")
    assert (handle.describe().version, handle.run_id) == (2, run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Nowhere", "--from", "1", "--to", "2"), "no workflow 'Nowhere'"),
        (("test.Parcel", "--from", "1", "--to", "7"), "has no version 7"),
        (("test.Parcel", "--from", "1", "--to", "2", "--map", "Pack"), "Write OldStep=NewStep"),
        (("test.Parcel", "--from", "1", "--to", "2", "--map", "Pack=Nowhere"), "V2 has no step 'Nowhere'"),
        (("test.Basket", "--from", "1", "--to", "2"), "not a versioned workflow"),
    ],
)
def test_migrate_says_what_it_cannot_understand(arguments, message):
    with pytest.raises(CommandError, match=message):
        command("migrate", *arguments)


def bad(**body):
    return lambda: type("Bad", (VersionedWorkflow,), {"__module__": __name__, **body})


def version(number=1, **body):
    async def run(self, args):
        return Ok(None)

    return type(f"Version{number}", (Workflow,), {"version": number, "run": run, "__module__": __name__, **body})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (bad(versions={}), "versions must be a mapping"),
        (bad(versions={1: version()}), "`current` is missing"),
        (bad(versions={1: version()}, current=2), "current 2 is not in versions"),
        (bad(versions={2: version()}, current=2), "version 2 is Version1, which has version = 1"),
        (bad(versions={0: version()}, current=0), "the version 0 must be a whole number of 1 or more"),
        (bad(versions={True: version()}, current=1), "the version True must be a whole number of 1 or more"),
        (bad(versions={1: int}, current=1), "which is not a workflow class"),
        (bad(versions={1: version()}, current=1, version=3), "remove its own `version`"),
        (
            bad(versions={1: version(unique=Unique(key="a")), 2: version(2, unique=Unique(key="b"))}, current=1),
            "its versions differ in `unique`",
        ),
        (bad(versions={1: version(__module__="elsewhere.workflows")}, current=1), "must be nested in Bad"),
    ],
)
def test_what_is_wrong_with_a_dispatcher_is_said_when_it_is_defined(make, message):
    """HE-162 HE-073."""
    with pytest.raises(errors.WorkflowDefinitionError, match=message):
        make()
    assert "Bad" not in workflows.registry


def test_a_run_whose_history_does_not_fit_its_own_class_does_not_move(monkeypatch):
    """It is blocked by a change of its class; what it would take along is not known."""
    (handle,) = waiting("1")

    class Edited(GraphWorkflow):
        unique = Unique(key="parcel")
        initial = Label
        transitions = {(Label, "ok"): Pack, (Pack, "ok"): call, (call, "call"): Done, (call, "timeout"): Done}

    monkeypatch.setattr(Edited, "name", "test.Parcel")
    monkeypatch.setattr(Parcel, "versions", {1: Edited, 2: Parcel.V2})
    verdict = Move(find_run("parcel::1", storage=storage()), version=2, names={"pack": "wrap"}).execute()
    assert not verdict.moves
    assert "the history does not match the graph" in verdict.why
    assert (handle.status, len(handle.run_ids), handle.describe().version) == ("waiting", 1, 1)


def test_of_several_versions_the_open_one_is_meant():
    """The newest chain may have ended."""

    class Ends(VersionedWorkflow):
        name = "test.Ends"

        class V1(Workflow):
            unique = Unique(key="ends", scope="version")

            async def run(self, args):
                return Ok(1)

        class V2(Workflow):
            version = 2
            unique = Unique(key="ends", scope="version")

            async def run(self, args):
                return Ok(await api.wait_for_signal("end"))

        versions = {1: V1, 2: V2}
        current = 2

    Ends.start("1", None)
    Ends.start("1", None, version=1)
    drain()
    assert Ends.get("1").describe().version == 2
    Ends.cancel("1")
    drain()
    assert Ends.get("1", version=2).status == "cancelled"


def test_a_run_that_lacks_its_class_goes_on_when_it_is_moved_and_holds_the_key_of_its_new_version(monkeypatch):
    class Moves(VersionedWorkflow):
        name = "test.Moves"

        class V1(Workflow):
            unique = Unique(key="moves", scope="version")

            async def run(self, args):
                return Ok(await api.wait_for_signal("go"))

        class V2(Workflow):
            version = 2
            unique = Unique(key="moves", scope="version")

            async def run(self, args):
                return Ok(await api.wait_for_signal("go"))

        versions = {1: V1, 2: V2}
        current = 1

    handle = Moves.start("1", None)
    with monkeypatch.context() as patched:
        patched.setattr(Moves, "versions", {2: Moves.V2})
        drain()
        assert handle.describe().blocked["code"] == "unknown_workflow"
        assert Move(find_run("moves::1", storage=storage()), version=2).execute().moves
        assert Chain.objects.get().due_at is not None  # for whoever is there: no worker need come anew
        drain()

    assert (handle.status, handle.describe().blocked) == ("waiting", None)
    with pytest.raises(errors.AlreadyRunning):
        Moves.start("1", None, version=2)
    other = Moves.start("1", None)
    assert other.describe().version == 1
    found = find_by_version("moves::1", storage=storage(), workflow="test.Moves", version=1)
    other.terminate()
    verdict = Move(found, version=2).execute()
    assert (verdict.moves, "has ended" in verdict.why) == (False, True)


def test_a_run_that_stays_keeps_the_key_under_which_it_is_open():
    """Scope ``version``: what a move had begun is undone when it turns out that the run stays."""

    class Keeps(VersionedWorkflow):
        name = "test.Keeps"

        class V1(Workflow):
            unique = Unique(key="keeps", scope="version")

            async def run(self, args):
                await api.sleep(5000)
                return Ok(1)

        class V2(Workflow):
            version = 2
            unique = Unique(key="keeps", scope="version")

            async def run(self, args):
                return Ok(await api.wait_for_signal("go"))

        versions = {1: V1, 2: V2}
        current = 1

    Keeps.start("1", None)
    drain()
    before = Chain.objects.get().open_key
    verdict = Move(find_run("keeps::1", storage=storage()), version=2).execute()
    assert not verdict.moves
    assert Chain.objects.get().open_key == before
    with pytest.raises(errors.AlreadyRunning):
        Keeps.start("1", None)
    assert Keeps.start("1", None, version=2).describe().version == 2
