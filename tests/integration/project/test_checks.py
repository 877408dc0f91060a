"""Settings and system checks."""

from __future__ import annotations

import re
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.core.checks import ERROR, CheckMessage, run_checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings
from django_q.brokers.orm import ORM

from temporalex_django import checks, conf
from temporalex_django.authoring import activity, workflow
from temporalex_django.workers.app_modules import describe_classes
from temporalex_django.workers.q2 import WorkerHost

BROKER = "temporalex_django.workers.q2.Broker"


class Mixed(WorkerHost, ORM):
    """A broker of the project's own that hosts workers."""


def found(setting: dict[str, Any] | None = None, **more: Any) -> dict[str, CheckMessage]:
    if setting is not None:
        more["TEMPORALEX"] = setting
    with override_settings(**more):
        return {message.id or "": message for message in run_checks(tags=[checks.TAG])}


def test_a_project_that_is_set_up_well_hears_nothing() -> None:
    assert found() == {}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"POLL_INTERVALL": 1}, "did you mean 'POLL_INTERVAL'"),
        ({"poll_interval": 1}, "did you mean 'POLL_INTERVAL'"),
        ({"NOTHING_LIKE_IT": 1}, "is not a setting"),
        ({"CACHE_SIZE": "many"}, "a whole number"),
        ({"POOLED": 1}, "True or False"),
        ({"PAYLOAD_CODEC": "no.such.Codec"}, "cannot be used"),
        ({"PAYLOAD_CODEC": "builtins.dict"}, "does not have the method encode"),
    ],
)
def test_a_wrong_setting_is_an_error_that_helps(setting: dict[str, Any], says: str) -> None:
    message = found(setting)["temporalex_django.E001"]

    assert says in message.msg
    assert message.level == ERROR


def test_an_alias_that_is_not_there_is_named() -> None:
    assert "'other'" in found({"DATABASE": "other"})["temporalex_django.E002"].msg


def test_settings_are_read_lazily() -> None:
    assert conf.get_settings().POLL_INTERVAL == 0.2
    with override_settings(TEMPORALEX={"POLL_INTERVAL": 1}):
        assert conf.get_settings().POLL_INTERVAL == 1
        assert conf.get_settings().CACHE_SIZE == 1000
    assert conf.get_settings().POLL_INTERVAL == 0.2


def test_every_setting_is_documented() -> None:
    assert all(text.endswith(".") and kind for _, kind, _, text in conf.documentation())


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        (BROKER, set()),
        ("tests.integration.project.test_checks.Mixed", set()),
        (None, {"temporalex_django.W004"}),
        ("temporalex_django.workers.q2.Brokker", {"temporalex_django.E006"}),
        ("temporalex_django.workers.q3.Broker", {"temporalex_django.E006"}),
        ("temporalex_django.workers.q2.nothing", {"temporalex_django.E006"}),
        ("django_q.brokers.orm.ORM", {"temporalex_django.W004"}),
    ],
)
def test_the_broker_class(broker: str | None, expected: set[str]) -> None:
    cluster = {"name": "t", "orm": "default", "timeout": 60, "retry": 120}
    if broker is not None:
        cluster["broker_class"] = broker

    assert set(found(Q_CLUSTER=cluster)) == expected


def test_retry_and_cache_of_the_cluster_are_warnings() -> None:
    cluster = {"name": "t", "broker_class": BROKER, "timeout": 60, "retry": 60}
    caches = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

    messages = found(Q_CLUSTER=cluster, CACHES=caches)

    assert set(messages) == {"temporalex_django.W010", "temporalex_django.W006"}
    assert all(message.level < ERROR for message in messages.values())


def test_limits_of_a_queue_that_nobody_names_are_a_warning() -> None:
    assert not found(TEMPORALEX={"QUEUES": {"default": {"concurrency": 3}}})

    messages = found(TEMPORALEX={"QUEUES": {"defualt": {"concurrency": 3}}})

    (warning,) = messages.values()
    assert (warning.id, warning.level < ERROR) == ("temporalex_django.W011", True)
    assert "'defualt'" in warning.msg
    assert "Did you mean 'default'?" in (warning.hint or "")


@pytest.mark.django_db
def test_sqlite_without_immediate_or_with_atomic_requests_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("SQLite's own")
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    messages = found()

    assert set(messages) == {"temporalex_django.W001", "temporalex_django.W002"}
    assert all(message.level < ERROR for message in messages.values())


@pytest.mark.django_db
def test_a_missing_migration_is_a_warning_that_lets_migrate_run() -> None:
    MigrationRecorder(connection).record_unapplied("temporalex_django", "0001_initial")
    said = StringIO()

    call_command("check", databases=["default"], stderr=said)

    assert "not applied: 0001_initial" in said.getvalue()
    assert "migrate temporalex_django" in said.getvalue()


@pytest.mark.django_db
def test_a_worker_names_a_missing_migration() -> None:
    MigrationRecorder(connection).record_unapplied("temporalex_django", "0001_initial")

    with pytest.raises(CommandError, match="0001_initial"):
        call_command("temporalex", "worker", "--burst")


BOOK_SHOP = {
    "__init__.py": "",
    "workflows.py": """
from collections.abc import Callable
from temporalex_django import Ok, Reply, Workflow, activity, api, update

def one(order): return Reply(1, order)
def plain(order, state): return Reply(1, state)
def odd(order: Callable, state): return Reply(1, state)

class BookShop(Workflow):
    def method(self, order): ...
    def good(self, order, state): ...
    async def run(self, args):
        return Ok(await api.phase({}, update={
            "a": lambda order: Reply(1, order),
            "b": one,
            "c": update(plain, validator=one),
            "d": self.method,
            "e": odd,
            "fine": self.good, "too": plain, "three": lambda order, state, more=None: Reply(1, state),
        }))

nameless = activity(local=True)(lambda order: order)

@activity
def late(order: "Imported", other: int) -> "list[Absent]": ...
""",
    "flows.py": """
from temporalex_django import Workflow, activity
class Forgotten(Workflow):
    async def run(self, args): ...
@activity
def lonely(order): ...
""",
    "tests/__init__.py": "",
    "tests/flows.py": "from temporalex_django import Workflow\nclass InTests(Workflow): ...",
}


def test_definitions_that_would_fail_later_are_warnings_with_their_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in BOOK_SHOP.items():
        (tmp_path / "bookshop" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bookshop" / name).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(workflow, "registry", dict(workflow.registry))
    monkeypatch.setattr(activity, "registry", dict(activity.registry))
    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "bookshop"]):
        import_module("bookshop.workflows")
        messages = run_checks(tags=[checks.TAG])
        with monkeypatch.context() as alone:
            alone.setattr(workflow, "registry", {})
            said = describe_classes()
    warned = [m.msg for m in messages if m.id == "temporalex_django.W016"]
    places = {
        re.search(r"workflows\.py:(\d+)", text)[1] + " " + text.partition(": ")[2][:25].strip() for text in warned
    }  # type: ignore[index]
    assert all(m.level < ERROR for m in messages)
    assert places == {
        "14 the handler of update 'a'",
        "15 the handler of update 'b'",
        "16 the validator of update '",
        "17 the handler of update 'd'",
        "18 nothing can be read back",
        "22 ",
        "24 the annotation 'Imported'",
        "24 the annotation 'list[Abse",
    }
    unloaded = [m for m in messages if m.id == "temporalex_django.W017"]
    assert [m.msg.rpartition("/")[2] for m in unloaded] == [
        "flows.py:3 defines the workflow Forgotten, but nothing loads bookshop.flows.",
        "flows.py:6 defines the activity lonely, but nothing loads bookshop.flows.",
    ]
    assert "bookshop.workflows" in (unloaded[0].hint or "")
    assert "bookshop.workflows, bookshop.activities (there is none)" in said
    assert "not loaded: bookshop.flows" in said


TILLS = """from temporalex_django import Approval, Escalation, Workflow, api

ROLE = "cash.open_till"


class Till(Workflow):
    name = "till.Till"

    async def run(self, order):
        await api.approval(
            "Open it?", groups=["cashiers", "nobody at all"], escalate=Escalation(after=60, role="bosses")
        )
        return await api.approval("Close it?", role=ROLE)


class Asked(Workflow):
    name = "till.Asked"

    async def run(self, order):
        # Names that are data are not known before the run.
        return await api.approval("Whom?", role=order["role"], groups=[order["group"], f"of-{order}"])


confirm = Approval(role="till.managers")
"""


@pytest.mark.django_db
def test_groups_and_permissions_of_approvals_that_do_not_exist_are_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "till").mkdir()
    (tmp_path / "till" / "__init__.py").touch()
    (tmp_path / "till" / "workflows.py").write_text(TILLS)
    Group.objects.create(name="cashiers")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(workflow, "registry", dict(workflow.registry))
    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "till"]):
        import_module("till.workflows")
        messages = [m for m in run_checks(databases=["default"]) if m.id == "temporalex_django.W018"]
        without_database = [m for m in run_checks() if m.id == "temporalex_django.W018"]

    texts = sorted(message.msg.rpartition("/")[2] for message in messages if "till" in message.msg)
    assert texts == [
        "workflows.py:10: the approval asks the group nobody at all, which does not exist.",
        "workflows.py:11: the approval asks the group bosses, which does not exist.",
        "workflows.py:13: the approval asks the permission cash.open_till, which does not exist.",
        "workflows.py:24: the approval asks the permission till.managers, which does not exist.",
    ]
    assert without_database == []
