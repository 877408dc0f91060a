"""``temporalex replay`` and ``temporalex export``: the gate before a deploy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from temporalex_django import Ok, Workflow, api
from temporalex_django.authoring import workflow
from temporalex_django.management import outputs
from temporalex_django.testing import DjangoEnvironment
from tests.support.runs import other, work


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    before = dict(workflow.registry)
    yield
    workflow.registry.clear()
    workflow.registry.update(before)


def define(*, changed: bool = False) -> type[Workflow]:
    class Shipment(Workflow):
        async def run(self, args: Any) -> Ok[Any]:
            await work(args)
            await api.sleep(60)
            if changed:
                await api.sleep(1)
            return Ok(await other(args))

    return Shipment


def line_of(cls: type[Workflow], offset: int) -> int:
    return cls.run.__code__.co_firstlineno + offset


def replay(**options: Any) -> dict[str, Any]:
    out = StringIO()
    try:
        call_command("temporalex", "replay", json=True, stdout=out, stderr=StringIO(), **options)
        status = 0
    except CommandError as exc:
        status = exc.returncode
    return {"status": status, **json.loads(out.getvalue())}


@pytest.fixture
def runs(db: None) -> list[Any]:
    """Two that are done, one that sleeps."""
    env = DjangoEnvironment()
    handles = [env.start(define(), n, id=f"shipment-{n}") for n in range(2)]
    env.advance(60)
    return [*handles, env.start(define(), 2, id="shipment-2")]


def test_code_as_it_is_fits(runs: list[Any]) -> None:
    report = replay()
    assert (report["status"], report["checked"], report["clean"]) == (0, 3, 3)


def test_a_changed_line_is_found_with_file_and_line(runs: list[Any]) -> None:
    changed = define(changed=True)
    report = replay()
    assert (report["status"], report["checked"]) == (1, 3)
    assert [f["id"] for f in report["findings"]] == ["shipment-0", "shipment-1"]  # the third has not come so far
    found = report["findings"][0]
    assert found["run"] == runs[0].run_id
    assert (found["error"], found["seq"]) == ("nondeterminism", 3)
    assert found["recorded"].startswith("ActivityScheduled, seq 3") and found["produced"] == "TimerStarted, seq 3"
    assert (found["file"], found["line"]) == (__file__, line_of(changed, 4))


def test_people_read_the_place_too(runs: list[Any]) -> None:
    changed, out = define(changed=True), StringIO()
    with pytest.raises(CommandError, match="2 of 3 histories do not match"):
        call_command("temporalex", "replay", stdout=out)
    assert f"Shipment shipment-0 run {runs[0].run_id} ({__file__}:{line_of(changed, 4)})" in out.getvalue()


@pytest.mark.parametrize(
    ("options", "checked"),
    [
        ({"open": True}, 1),
        ({"workflow": ["Shipment"]}, 3),
        ({"workflow": ["Nothing"]}, 0),
        ({"sample": 2}, 2),
        ({"sample": 9}, 3),
    ],
)
def test_what_is_replayed_can_be_chosen(runs: list[Any], options: dict[str, Any], checked: int) -> None:
    assert replay(**options)["checked"] == checked


def test_a_sample_of_nothing_is_refused(runs: list[Any]) -> None:
    with pytest.raises(CommandError, match="--sample 0 is too small"):
        call_command("temporalex", "replay", sample=0)


def test_a_class_that_is_gone_is_a_finding(runs: list[Any]) -> None:
    del workflow.registry["Shipment"]
    report = replay(open=True)
    assert [f["error"] for f in report["findings"]] == ["unknown_workflow"]


def test_code_that_never_waits_is_not_called_a_mismatch(runs: list[Any], settings: Any) -> None:
    class Shipment(Workflow):
        async def run(self, args: Any) -> Ok[Any]:
            while True:
                pass

    settings.TEMPORALEX = {"DEADLOCK_TIMEOUT": 0.2}
    report = replay(open=True)
    assert [f["error"] for f in report["findings"]] == ["deadlock"]
    assert "within 0.2" in report["findings"][0]["message"]
    assert (report["status"], report["clean"]) == (outputs.TRY_AGAIN, 0)
    with pytest.raises(CommandError, match="took too long") as caught:
        call_command("temporalex", "replay", open=True, timeout=0.1, stdout=(out := StringIO()))
    assert caught.value.returncode == outputs.TRY_AGAIN
    assert "0.1 s of processor time" in out.getvalue()
    assert "1 history replayed, 0 do not match the code, 1 took too long" in out.getvalue()
    with pytest.raises(CommandError) as caught:
        call_command("temporalex", "doctor", deploy=True, stdout=(out := StringIO()))
    assert caught.value.returncode == outputs.TRY_AGAIN
    assert "was not checked: " in out.getvalue()
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(CommandError, match="--timeout") as caught:
            call_command("temporalex", "replay", timeout=wrong)
        assert caught.value.returncode == outputs.USAGE_ERROR


def test_a_mismatch_beside_a_replay_that_took_too_long_is_one(runs: list[Any], settings: Any) -> None:
    class Shipment(Workflow):
        async def run(self, args: Any) -> Ok[Any]:
            while args == 2:
                pass
            return Ok(None)

    settings.TEMPORALEX = {"DEADLOCK_TIMEOUT": 0.2}
    report = replay()
    assert [f["error"] for f in report["findings"]].count("deadlock") == 1
    assert (len(report["findings"]), report["status"]) == (3, outputs.FINDINGS)


def test_exported_files_replay_and_show_changed_code(runs: list[Any], tmp_path: Path) -> None:
    call_command("temporalex", "export", "shipment-0", runs[2].run_id, output=str(tmp_path), stdout=StringIO())
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == sorted(f"Shipment-{runs[n].run_id}.json" for n in (0, 2))
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
    assert replay(file=[str(tmp_path)])["clean"] == 2
    changed = define(changed=True)
    report = replay(file=[str(tmp_path / files[0]), str(tmp_path / files[1])])
    assert [(f["id"], f["line"]) for f in report["findings"]] == [("shipment-0", line_of(changed, 4))]


def test_files_that_cannot_be_used_are_findings(runs: list[Any], tmp_path: Path) -> None:
    call_command("temporalex", "export", workflow="Shipment", open=True, output=str(tmp_path), stdout=StringIO())
    (good,) = tmp_path.iterdir()
    (tmp_path / "cut.json").write_text(good.read_text()[:200])
    report = replay(file=[str(tmp_path)])
    assert [(f["error"], f["source"]) for f in report["findings"]] == [("payload", str(tmp_path / "cut.json"))]
    report = replay(file=[str(good)], workflow=["Cart"])
    assert "event 1 belongs to the workflow Shipment, not to Cart" in report["findings"][0]["message"]
    with pytest.raises(CommandError, match="does not exist"):
        call_command("temporalex", "replay", file=[str(tmp_path / "nothing.json")])


def test_an_export_follows_no_link_that_lies_in_its_place(runs: list[Any], tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f"Shipment-{runs[0].run_id}.json").symlink_to(precious)
    with pytest.raises(CommandError, match="cannot be written"):
        call_command("temporalex", "export", runs[0].run_id, output=str(tmp_path / "out"), stdout=StringIO())
    assert precious.read_text() == "keep me"


def test_an_export_of_nothing_is_refused(runs: list[Any]) -> None:
    with pytest.raises(CommandError, match="no runs are selected"):
        call_command("temporalex", "export")
    with pytest.raises(CommandError, match="no matching run has a history"):
        call_command("temporalex", "export", "nobody")
