"""One hash seed for all workers of a project, and what happens where processes have others."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import WARNING, run_checks
from django.core.management import call_command

from temporalex_django import checks
from temporalex_django.authoring import workflow as registry_of
from temporalex_django.db.inserts import StartedRun, insert_message, insert_start
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine.run_start import RunStart
from temporalex_django.models import Instance
from temporalex_django.workers import app_modules
from tests.support.processes import running, worker
from tests.support.waiting import wait_for

SKUS = [f"sku-{n}" for n in range(12)]
SHOP = """
from temporalex_django import Ok, Workflow, activity, api

@activity(name="setshop.price")
def price(sku: str) -> str:
    return f"price of {sku}"

class Priced(Workflow):
    name = "SetshopPriced"

    async def run(self, skus: list[str]):
        found = {}
        for sku in set(skus):
            found[sku] = await price(sku)
            await api.wait_for_signal("go")
        return Ok(found)
"""


@pytest.fixture
def env(subprocess_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """With an application whose workflow iterates a set of texts, in processes without a seed of their own."""
    app = tmp_path / "setshop"
    app.mkdir()
    (app / "__init__.py").write_text("")
    (app / "workflows.py").write_text(SHOP)
    without = {
        name: value for name, value in subprocess_env.items() if name not in (app_modules.VARIABLE, app_modules.MARK)
    }
    paths = os.pathsep.join([str(tmp_path), subprocess_env["PYTHONPATH"]])
    return {
        **without,
        "DJANGO_SETTINGS_MODULE": "tests.settings_of_processes",
        "TX_TEST_APPS": "setshop",
        "PYTHONPATH": paths,
    }


def start() -> StartedRun:
    return insert_start(RunStart(workflow="SetshopPriced", args=SKUS, workflow_id="prices"), storage=DjangoStorage())


def go(started: StartedRun, times: int) -> None:
    for _ in range(times):
        insert_message(started.chain_id, kind="signal", name="go", body=None, storage=DjangoStorage())


def row(started: StartedRun) -> Instance:
    return Instance.objects.get(pk=started.run_id)


def waits_at(started: StartedRun, activities: int) -> bool:
    from temporalex_django.models import HistoryEvent

    done = HistoryEvent.objects.filter(run_id=started.run_id, kind="ActivityCompleted").count()
    return done == activities or bool(row(started).blocked)


def result(started: StartedRun) -> Any:
    history = DjangoStorage().histories({started.run_id: 0})[started.run_id]
    return history[-1].attributes["result"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_workers_of_a_project_order_sets_alike(env: dict[str, str], tmp_path: Path) -> None:
    """A run that one worker began and another one goes on with gives each sku its own price."""
    started = start()
    with worker(env, tmp_path, name="first") as first:
        wait_for(lambda: waits_at(started, 1))
        first.kill()
    go(started, len(SKUS))
    with worker(env, tmp_path, name="second"):
        wait_for(lambda: not row(started).is_open or row(started).blocked, seconds=60)
    assert result(started) == {sku: f"price of {sku}" for sku in SKUS}
    for name in ("first", "second"):
        assert "different input" not in (tmp_path / f"{name}.log").read_text()
        assert "W012" not in (tmp_path / f"{name}.log").read_text()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strict", [False, True])
def test_processes_with_other_seeds_are_told_of_it(env: dict[str, str], tmp_path: Path, strict: bool) -> None:
    """A seed that somebody set wins. The log names command and path, no value; STRICT_REPLAY blocks the run."""
    env = {**env, "TX_TEST_TEMPORALEX": json.dumps({"STRICT_REPLAY": strict})}
    started = start()
    with worker({**env, app_modules.VARIABLE: "1"}, tmp_path, name="first") as first:
        wait_for(lambda: waits_at(started, 1))
        first.kill()
    go(started, len(SKUS))
    with worker({**env, app_modules.VARIABLE: "2"}, tmp_path, name="second") as second:
        wait_for(lambda: not row(started).is_open or row(started).blocked, seconds=60)
        if not strict:
            second.says("different input")
    log = (tmp_path / "second.log").read_text()
    if strict:
        assert row(started).blocked["code"] == "nondeterminism"
        assert "setshop.price, sku differs" in row(started).blocked["error"]
        assert "sku-" not in row(started).blocked["error"]
    else:
        assert log.count("different input") == 1
        assert "activity setshop.price: sku differs" in log
        assert result(started) != {sku: f"price of {sku}" for sku in SKUS}
    assert "sku-" not in log


def seed_of(command: list[str], env: dict[str, str], cwd: Path) -> dict[str, Any]:
    """The environment of the worker's process, which ends at once: there is nothing to do."""
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


MANAGE = """#!{python}
import json, os, sys
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    if "worker" in sys.argv:
        import django
        django.setup()
        import temporalex_django.management.worker as worker
        worker.run_worker.handle = lambda command, **_: print(json.dumps({
            "seed": os.environ.get("PYTHONHASHSEED"), "mark": os.environ.get("TEMPORALEX_HASH_SEED_SET"),
            "flags": list(sys.flags), "hash": hash("text"), "orig": sys.orig_argv[1:], "pid": os.getpid()}))
    execute_from_command_line()
"""


MOVED = "import os, runpy, sys; os.chdir('/'); runpy.run_path(sys.argv.pop(1), run_name='__main__')"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["script", "executable", "-m", "-W -X script", "set", "-E", "moved"])
def test_a_worker_takes_the_seed_once(env: dict[str, str], tmp_path: Path, how: str) -> None:
    manage = tmp_path / "manage_seed.py"
    manage.write_text(MANAGE.replace("{python}", sys.executable))
    manage.chmod(0o755)
    rest = ["temporalex", "worker", "--burst"]
    command = {
        "script": [sys.executable, "manage_seed.py", *rest],
        "executable": ["./manage_seed.py", *rest],
        "-m": [sys.executable, "-m", "manage_seed", *rest],
        "-W -X script": [sys.executable, "-W", "ignore", "-X", "dev", str(manage), *rest],
        "set": [sys.executable, "manage_seed.py", *rest],
        "-E": [sys.executable, "-E", "manage_seed.py", *rest],
        "moved": [sys.executable, "-c", MOVED, str(manage), *rest],
    }[how]
    if how == "set":
        env = {**env, app_modules.VARIABLE: "17"}
    if how == "-E":  # which takes the path away, too
        paths = env["PYTHONPATH"].split(os.pathsep)
        settings = env["DJANGO_SETTINGS_MODULE"]
        code = f"import os, runpy, sys; sys.path[:0] = {paths!r}; os.environ['DJANGO_SETTINGS_MODULE'] = {settings!r}; "
        command[2:3] = ["-c", f"{code} runpy.run_path({str(manage)!r}, run_name='__main__')"]
    said = seed_of(command, env, tmp_path)
    if how == "set":
        assert (said["seed"], said["mark"]) == ("17", None)
    elif how == "-E":
        assert (said["seed"], said["mark"]) == (None, None)
    else:
        assert (said["seed"], said["mark"]) == (str(app_modules.project_seed()), "1")
        assert said["hash"] == seed_of(command, env, tmp_path)["hash"]


@pytest.mark.parametrize(
    ("command_line", "again"),
    [
        (["python", __file__, "temporalex", "worker"], [__file__, "temporalex", "worker"]),
        (["python", "-m", "django", "temporalex", "worker"], ["-m", "django", "temporalex", "worker"]),
        (["python", "-X", "dev", "-W", "error", __file__], ["-X", "dev", "-W", "error", __file__]),
        (["python", "-bm", "django"], ["-bm", "django"]),
        (["python", "-c", "code"], ["-c", "code"]),
        (["python", "nowhere/manage.py"], None),
        (["python", "-"], None),
        (["python"], None),
        ([], None),
    ],
)
def test_which_command_lines_can_be_run_again(command_line: list[str], again: list[str] | None) -> None:
    assert app_modules.restart_command(command_line, {}) == (None if again is None else [sys.executable, *again])
    assert app_modules.restart_command(command_line, {app_modules.VARIABLE: "random"}) is None
    assert app_modules.restart_command(command_line, {app_modules.MARK: "1"}) is None


def test_other_commands_and_calls_never_start_again(monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    monkeypatch.setattr(app_modules, "restart", lambda: pytest.fail("started again"))
    call_command("temporalex", "worker", burst=True)


def test_the_seed_is_that_of_the_secret_key(settings: Any) -> None:
    before = app_modules.project_seed()
    assert 0 < before < 2**32
    assert app_modules.project_seed() == before
    settings.SECRET_KEY = "another"
    assert app_modules.project_seed() != before
    assert app_modules.different_seed() not in (before, app_modules.project_seed())


def test_the_check_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For web processes and clusters, which nobody starts again; not where a seed is set."""
    file = tmp_path / "workflows_with_a_set.py"
    file.write_text(SHOP.replace("SetshopPriced", "SetshopChecked"))
    spec = importlib.util.spec_from_file_location("tests.app.workflows_with_a_set", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["tests.app.workflows_with_a_set"] = importlib.util.module_from_spec(spec)
    before = dict(registry_of.registry)

    def found() -> list[Any]:
        return [one for one in run_checks(tags=[checks.TAG]) if str(file) in one.msg]

    try:
        spec.loader.exec_module(module)
        monkeypatch.delenv(app_modules.VARIABLE, raising=False)
        [message] = found()
        assert (message.id, message.level) == ("temporalex_django.W012", WARNING)
        assert f"{file}:13: iteration of a set in workflow code (Priced.run)" in message.msg
        assert f"PYTHONHASHSEED={app_modules.project_seed()}" in message.hint
        monkeypatch.setenv(app_modules.VARIABLE, str(app_modules.project_seed()))
        assert found() == []
    finally:
        registry_of.registry.clear()
        registry_of.registry.update(before)
        del sys.modules["tests.app.workflows_with_a_set"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_histories_are_replayed_under_another_seed(env: dict[str, str], tmp_path: Path) -> None:
    """``temporalex replay`` finds before a deploy what a web process, or a cluster, would do otherwise."""
    started = start()
    with worker(env, tmp_path) as process:
        wait_for(lambda: waits_at(started, 1))
        assert process.terminate() == 0
    for strict, status in ((), 0), (("--strict",), 1):
        log = tmp_path / f"replay{status}.log"
        with running(["temporalex", "replay", "--open", *strict], env, log) as replaying:
            assert replaying.popen.wait(60) == status
        said = log.read_text()
        assert "different input at history event 3: ActivityScheduled, seq 1, activity setshop.price, sku" in said
        assert "workflows.py:14" in said
        assert "sku-" not in said
