"""``manage.py temporalex``: what each subcommand prints, for people and for programs, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from inspect import signature
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # it ships no types
import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from temporalex_django import errors
from temporalex_django.management import outputs
from temporalex_django.management.commands.temporalex import Command
from temporalex_django.management.run_commands import COMMANDS
from temporalex_django.models import BulkJob, HumanTask, Instance, OperatorAction
from temporalex_django.operations import bulk
from temporalex_django.operations.fleet.stats import LiveWorkers
from temporalex_django.operations.registry import STEERING
from temporalex_django.rest import requests
from tests.support.client_flows import Basket, drain
from tests.support.commands import Ran, shell, timeless, transcript
from tests.support.matrix import RUNS, Choice, Errand, Question
from tests.support.people import stored

pytestmark = [pytest.mark.django_db, pytest.mark.of_the_tables("texts with the times and rows of the tables")]

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "commands"
WRITE = bool(os.environ.get("UPDATE_GOLDEN"))
ODD = """it's "odd"; rm -rf $HOME"""


@pytest.fixture(autouse=True)
def _in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("temporalex_django.management.arguments.os_account", lambda: "operator")
    with timeless():
        yield


def golden(name: str, *said: str) -> None:
    """Compare with what is kept; ``UPDATE_GOLDEN=1`` keeps it."""
    path, text = GOLDEN / name, "\n".join(said)
    if WRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "UPDATE_GOLDEN=1 keeps it as it is now: read the difference first"


def fits(name: str, text: str) -> Any:
    """The output of ``--json``, which its schema takes; each line is a value where the command prints lines."""
    kept = "steering" if name in STEERED else name
    schema = json.loads((GOLDEN / f"{kept}.schema.json").read_text(encoding="utf-8"))
    lines = name in {"list", "history", "export"}
    values = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    for value in values:
        jsonschema.validate(value, schema)
    return values if lines else values[0]


def plain(ran: Ran) -> str:
    assert (ran.status, ran.err) == (0, ""), ran
    return ran.out


@pytest.fixture
def runs() -> None:
    """One of each: waits for messages, for a decision, is in trouble, is over, has not begun."""
    Basket.start(id="basket-1")
    Choice.start("1")
    Errand.start(value="1")
    Basket.start(id="basket-2")
    drain()
    Basket.handle("basket-2").terminate("enough")
    Basket.start(id=ODD)


@pytest.mark.usefixtures("runs")
def test_what_runs_look_like(monkeypatch: pytest.MonkeyPatch) -> None:
    queried = "--status", "terminated,pending", "--workflow", "test.Basket"
    wide = transcript("list", *queried), transcript("list", "--limit", 2), transcript("list", "--id-prefix", "nobody")
    monkeypatch.setenv("COLUMNS", "60")
    narrow = transcript("list", columns=60), transcript("describe", "basket-1", columns=60)
    monkeypatch.delenv("COLUMNS")
    with monkeypatch.context() as without_rich:
        without_rich.setattr("temporalex_django.management.outputs.find_spec", lambda _: None)
        assert transcript("list", *queried) == wide[0]
    golden("list.txt", *wide, *narrow[:1], transcript("list", "--json", "--limit", 1))
    golden("describe.txt", transcript("describe", "rederrand::1"), transcript("describe", ODD), narrow[1])
    golden("history.txt", transcript("history", "rederrand::1"), transcript("history", "basket-2", "--json"))

    assert max(map(len, narrow[0].splitlines()[1:])) <= 60
    found = fits("list", plain(shell("list", "--json")))
    assert [one["id"] for one in found] == [ODD, "basket-2", "rederrand::1", "redchoice::1", "basket-1"]
    assert [one["summary"]["trouble"] for one in found] == [False, False, True, False, False]
    assert fits("describe", plain(shell("describe", ODD, "--json")))["run"]["id"] == ODD
    assert fits("describe", plain(shell("describe", "rederrand::1", "--json")))["run"]["activities"][0]["seq"] == 1
    assert fits("history", plain(shell("history", "rederrand::1", "--json")))[0]["kind"] == "WorkflowStarted"
    assert fits("versions", plain(shell("versions", "--json")))[0]["open"] == 2


def test_messages() -> None:
    golden(
        "messages.txt",
        transcript("start", "test.Basket", "--id", "basket-1"),
        transcript("update", "basket-1", "add", "--args", "5"),
        transcript("query", "basket-1", "items"),
        transcript("signal", "basket-1", "note", "--payload", '{"text": "a\\nb"}'),
        transcript("start", "test.MatrixChoice", "--value", "1"),
        transcript("resume", "redchoice::1", "approved"),
        transcript("start", "test.Basket", "--id", "basket-1"),
        transcript("update", "basket-1", "add", "--args", "-1"),
        transcript("query", "basket-1", "itms"),
    )
    stored("ann", "temporalex_django.signal_instance")

    started = fits("start", plain(shell("start", "test.Basket", "--json")))
    run = started["run_id"]
    assert fits("update", plain(shell("update", run, "add", "--args", "5", "--json")))["result"] == 1
    assert fits("query", plain(shell("query", run, "items", "--json")))["result"] == [5]
    assert fits("signal", plain(shell("signal", run, "note", "--json", "--as-user", "ann")))["signal"] == "note"
    acted = [*OperatorAction.objects.order_by("pk").values_list("action", "actor_name", "source", "automatic")]
    assert acted[0] == ("start", "operator", "command", False)
    assert acted[-1] == ("signal", "ann", "command", False)


STEERED: dict[str, tuple[Any, ...]] = {
    "pause": ("basket-1", "--reason", "bank holiday"),
    "unpause": ("basket-1",),
    "try-again": ("red-1",),
    "retry": ("rederrand::1", "1"),
    "complete": ("rederrand::1", "1", "--result", "5"),
    "skip": ("rederrand::1", "2"),
    "reset": ("basket-1", "--to", "0"),
    "fork": ("basket-1", "--to", "0", "--id", "basket-3"),
    "cancel": ("basket-1",),
    "terminate": ("basket-1", "--reason", ODD),
    "delete": ("basket-2",),
}


@pytest.mark.usefixtures("runs")
def test_what_operators_do() -> None:
    RUNS["blocked"]()
    said = [transcript(name, *arguments) for name, arguments in STEERED.items()]
    Errand.start(value="2")
    drain()
    said += [transcript("fail", "rederrand::2", "1", "--message", "no"), transcript("cancel", "basket-1")]
    said += [transcript("retry", "rederrand::2", "1"), transcript("complete", "rederrand::2", "9", "--result", "{")]
    golden("steering.txt", *said)

    assert set(Command.subcommands) > {*STEERED, "fail"}
    paused = fits("pause", plain(shell("pause", "basket-3", "--json")))
    assert (paused["action"], paused["id"], paused["made"]) == ("pause", "basket-3", None)
    assert fits("fork", plain(shell("fork", "basket-3", "--to", "0", "--json")))["made"]
    assert OperatorAction.objects.get(action="terminate", workflow_id="basket-1").reason == ODD
    assert set(OperatorAction.objects.filter(source="command").values_list("actor_name", flat=True)) == {"operator"}


@pytest.mark.usefixtures("runs")
def test_many_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        transcript("bulk", "terminate"),
        transcript("bulk", "terminate", "--all", "--workflow", "test.Basket"),
        transcript("bulk", "terminate", "--workflow", "test.Nothing"),
        transcript("bulk", "show"),
        transcript("bulk", "terminate", "--workflow", "test.Basket", "--reason", ODD),
    ]
    job = BulkJob.objects.get()
    said += [
        transcript("bulk", "stop", job.pk),
        transcript("bulk", "stop", job.pk),
        transcript("bulk", "resume", job.pk),
    ]
    said += [transcript("bulk", "signal", "--id-prefix", "basket-1", "--signal", "note", "--wait")]

    looks = iter(range(50))

    def live_workers(*, alias: str) -> LiveWorkers:
        assert next(looks) >= 0, "the job does not end"
        bulk.run_jobs(alias)
        return LiveWorkers.from_rows([((), {}, ())])

    monkeypatch.setattr("temporalex_django.management.bulk.live_workers", live_workers)
    monkeypatch.setattr("temporalex_django.management.bulk._POLL_SECONDS", 0)
    said += [transcript("bulk", "pause", "--workflow", "test.Basket", "--wait"), transcript("bulk", "show", job.pk)]
    said += [transcript("bulk", "show"), transcript("bulk", "show", "nothing")]
    golden("bulk.txt", *said)

    assert fits("bulk", plain(shell("bulk", "show", job.pk, "--json")))["by"] == "operator"
    assert len(fits("bulk", plain(shell("bulk", "show", "--json")))) == 3
    acted = OperatorAction.objects.filter(action="terminate", source="command")
    assert {*acted.values_list("actor_name", "reason")} == {("operator", ODD)}
    stored("ann", "temporalex_django.bulk_actions")
    assert plain(shell("bulk", "show", "--as-user", "ann")) == "no bulk jobs\n"


def test_what_people_are_asked() -> None:
    said = [transcript("tasks", "list")]
    ann = stored("red-right")
    Question.start(value="1")
    drain()
    task = HumanTask.objects.get().pk
    said += [transcript("tasks", "list"), transcript("tasks", "list", "--as-user", "red-right", "--limit", "1")]
    said += [
        transcript("tasks", "decide", task, "approved"),
        transcript("tasks", "list", "--as-user", "red-right", "--all"),
    ]
    said += [transcript("tasks", "claim", task, "--as-user", "red-right")]
    said += [transcript("tasks", "decide", task, "maybe", "--as-user", "red-right")]
    said += [transcript("tasks", "decide", task, "approved", "--comment", ODD, "--as-user", "red-right")]
    said += [
        transcript("tasks", "decide", task, "approved", "--as-user", "red-right"),
        transcript("tasks", "show", "x"),
    ]
    golden("tasks.txt", *said)

    (listed,) = [*map(json.loads, plain(shell("tasks", "show", task, "--json")).replace("\n", " ").splitlines())]
    assert fits("tasks", json.dumps(listed))["comment"] == ODD
    assert plain(shell("tasks", "list", "--json")) == ""
    audit = OperatorAction.objects.get(action="decide", denied=False)
    assert (audit.actor_id, audit.source, audit.reason) == (ann.pk, "command", "")


def flowing(schema: Any) -> Any:
    """Descriptions on one line: how docstrings are indented depends on the version of Python."""
    if isinstance(schema, dict):
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else flowing(value)
            for key, value in schema.items()
        }
    return [flowing(one) for one in schema] if isinstance(schema, list) else schema


def schema_of(output: Any) -> Any:
    if not isinstance(output, tuple):
        return msgspec.json.schema(output)
    schemas, components = msgspec.json.schema_components(output, ref_template="#/$defs/{name}")
    return {"anyOf": [*schemas], "$defs": components}


def test_schemas_are_those_of_the_code() -> None:
    """Every command has ``--json``, and says what it prints then."""
    parsers = Command().create_parser("manage.py", "temporalex")._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    for name, command in Command.subcommands.items():
        assert "--json" in parsers[name].format_help() or name in (
            "bulk",
            "outbox",
            "schedules",
            "switches",
            "tasks",
        ), name
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **flowing(schema_of(command.output))}
        golden(f"{'steering' if name in COMMANDS else name}.schema.json", json.dumps(schema, indent=2) + "\n")


def test_each_parameter_of_a_subcommand_declares_an_argument() -> None:
    """A function whose parameter declares none would not get a value for it."""
    subcommands = [one for command in Command.subcommands.values() for one in (command, *command.words.values())]
    for subcommand in subcommands:
        declared = {parameter.name for parameter, _ in subcommand.parameters}
        assert {*signature(subcommand.function).parameters} - {"command", "action"} == declared, subcommand.description


def test_code_passes_options_by_the_names_that_a_shell_has() -> None:
    with pytest.raises(CommandError, match=r"--as-user 'nobody' is not a user"):
        call_command("temporalex", "list", as_user="nobody")
    with pytest.raises(CommandError, match=r"--limit 0 is too small"):
        call_command("temporalex", "schedules", "list", limit=0)


def test_the_help_of_bulk_says_of_each_action_what_it_is_for() -> None:
    parsers = Command().create_parser("manage.py", "temporalex")._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    text = " ".join(parsers["bulk"].format_help().split())  # type: ignore[index]

    assert {name for name, action in STEERING.items() if f"{name} {action.summary}" not in text} == set()
    assert "a function workflow may clean up" not in text


@pytest.mark.usefixtures("runs")
def test_histories_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that a shell and a file system would take amiss is one like others."""
    monkeypatch.chdir(tmp_path)
    drain()
    said = [
        transcript("export", "basket-1", ODD, "--output", "out"),
        transcript("export", "--workflow", "test.Basket", "--output", "out", "--json"),
        transcript("export", ODD),
        transcript("export"),
        transcript("export", "basket-1", "--output", "/dev/null/it's"),
        transcript("replay", "--file", "out"),
        transcript("replay", "--file", "nowhere"),
        transcript("replay", "--sample", "0"),
        transcript("graph", "test.MatrixChoice", "--id", "1"),
        transcript("graph", "test.MatrixChoice", "--json"),
        transcript("graph", "test.Basket"),
        transcript("graph", "test.MatrixChoice", "--output", "nowhere/x"),
        transcript("versions"),
        transcript("migrate", "test.Basket", "--from", "1", "--to", "2"),
        transcript("migrate", "test.MatrixMoving", "--from", "1", "--to", "2", "--map", "x"),
    ]
    golden("files.txt", *said)

    (written,) = fits("export", plain(shell("export", "basket-1", "--output", "out", "--json")))
    assert (written["id"], written["events"]) == ("basket-1", len(Basket.handle("basket-1").history()))
    (tmp_path / "out" / "cut.json").write_text("{")
    replayed = shell("replay", "--file", "out", "--json")
    assert (replayed.status, replayed.err != "") == (outputs.FINDINGS, True)
    found = fits("replay", replayed.out)
    assert (found["clean"] + 1, found["findings"][0]["source"]) == (found["checked"], "out/cut.json")
    drawn = fits("graph", plain(shell("graph", "test.MatrixChoice", "--id", "1", "--format", "dot", "--json")))
    assert {step["key"]: step["state"] for step in drawn["steps"]}["decision"] == "waiting"
    assert (drawn["arrows"][0]["event"], drawn["drawing"].split()[0]) == ("approved", "digraph")
    picture = shell("graph", "test.MatrixChoice", "--output", "x.mmd", "--json")
    assert fits("graph", plain(picture))["drawing"] is None
    assert (tmp_path / "x.mmd").read_text().startswith("flowchart")


class Keyboard(io.StringIO):
    """Somebody at a terminal who types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("runs")
def test_what_cannot_be_undone_is_asked_about_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(text: str, *arguments: Any) -> Ran:
        monkeypatch.setattr("sys.stdin", Keyboard(text))
        return shell(*arguments)

    refused = answered("no\n", "terminate", "basket-1", "--reason", "r")
    assert (refused.status, refused.out) == (outputs.FINDINGS, "")
    effect = "Terminate a run. The run is closed at once. None of its code runs any more, so nothing is cleaned up."
    assert f"{effect} Continue for test.Basket basket-1? [y/N]" in refused.err
    assert "nothing was done. Answer y, or use --yes." in refused.err
    assert answered("", "bulk", "terminate", "--workflow", "test.Basket").status == outputs.FINDINGS  # Ctrl-D
    assert f"{effect} Continue for 3 runs?" in answered("\n", "bulk", "terminate", "--workflow", "test.Basket").err
    assert "Continue for 1 run?" in answered("\n", "bulk", "delete", Basket.handle("basket-2").run_id).err
    assert (Basket.handle("basket-1").status, BulkJob.objects.count()) == ("waiting", 0)

    assert answered("", "pause", "basket-1").err == ""  # that can be undone
    assert "(y/N)" not in answered("", "bulk", "signal", "--all", "--signal", "note").err
    agreed = answered("Yes\n", "terminate", "basket-1", "--json")
    assert (agreed.status, fits("terminate", agreed.out)["action"]) == (0, "terminate")
    assert answered("", "delete", "basket-1", "--yes").err == ""
    monkeypatch.setattr("sys.stdin", None)  # no terminal at all
    assert shell("delete", "basket-2").status == 0
    assert set(Instance.objects.values_list("workflow_id", flat=True)) == {ODD, "rederrand::1", "redchoice::1"}


@pytest.mark.usefixtures("runs")
def test_long_work_shows_how_far_it_is_where_somebody_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(tmp_path)

    for arguments, shown in (
        (("export", "--workflow", "test.Basket"), "2 of 2"),
        (("replay",), "4 of 4, 0 do not match"),
        (("doctor", "--deploy"), "3 of 3"),
    ):
        looked, piped = shell(*arguments, tty=True), shell(*arguments)
        assert shown in looked.err, (arguments, looked)
        assert max(len(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line)) for line in re.split(r"[\r\n]", looked.err)) <= 60
        assert "\x1b" not in looked.out + piped.out + piped.err, arguments
        assert " of " not in piped.err, arguments
    assert "of" not in shell("export", "basket-1", "--json", tty=True).err  # its lines say it
    monkeypatch.setattr("temporalex_django.management.outputs.find_spec", lambda _: None)  # without rich
    assert "\r2 of 2" in shell("export", "--workflow", "test.Basket", tty=True).err


#: A command line that is wrong, or cannot be done, and the status that it ends with.
WRONG: list[tuple[int, tuple[str, ...]]] = [
    (outputs.NOT_FOUND, ("describe", "nobody")),
    (outputs.NOT_FOUND, ("describe", "a\nb\x1b[31m")),
    (outputs.NOT_FOUND, ("start", "test.Baskt")),
    (outputs.NOT_FOUND, ("list", "--as-user", "no'body")),
    (outputs.USAGE_ERROR, ("start", "test.Basket", "--args", "{")),
    (outputs.USAGE_ERROR, ("start", "test.Basket", "--args", "NaN")),
    (outputs.USAGE_ERROR, ("start", "test.Basket", "--args", "[" * 100_000)),
    (outputs.USAGE_ERROR, ("start", "test.Basket", "--id", "a/b\n")),
    (outputs.USAGE_ERROR, ("start", "test.Basket", "--subject", "shop.order:1")),
    (outputs.USAGE_ERROR, ("list", "--status", "opened")),
    (outputs.USAGE_ERROR, ("list", "--blocked", "yes")),
    (outputs.USAGE_ERROR, ("list", "--created-after", "today")),
    (outputs.USAGE_ERROR, ("list", "--id-prefix", "a\nb")),
    (outputs.USAGE_ERROR, ("list", "--limit", "0")),
    (outputs.USAGE_ERROR, ("list", "--colour", "red")),
    (outputs.USAGE_ERROR, ("retry", "basket-1", "one")),
    (outputs.NOT_PERMITTED, ("list", "--as-user", "ann")),
    (outputs.NOT_PERMITTED, ("cancel", "basket-1", "--as-user", "ann")),
    (outputs.REFUSED, ("unpause", "basket-1")),
    (outputs.REFUSED, ("resume", "basket-1", "approved")),
    (outputs.REFUSED, ("update", "basket-1", "add", "--args", "-1")),
    (outputs.REFUSED, ("update", "basket-1", "slow", "--args", "1", "--wait", "0")),  # it would wait, in a transaction
]  # fmt: skip


def test_what_rest_says_to_send_again_a_command_says_to_try_again() -> None:
    for cls, status in requests.STATUS_OF_ERRORS:
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            assert outputs.as_command_error(cls()).returncode == outputs.TRY_AGAIN, cls


def test_what_is_wrong_is_one_sentence_with_the_next_step() -> None:
    stored("ann")
    Basket.start(id="basket-1")
    drain()

    for status, arguments in WRONG:
        ran = shell(*arguments)
        assert (ran.status, ran.out) == (status, ""), (arguments, ran)
        assert "Traceback" not in ran.err
        assert ran.err.strip().isprintable() or "usage:" in ran.err, ran.err
        assert re.search(r"[.?] \S", ran.err) or "usage:" in ran.err, ran.err
    golden("errors.txt", *(transcript(*arguments) for _, arguments in WRONG if len(str(arguments)) < 200))
    every = {cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.TemporalexError)}
    assert {outputs.as_command_error(cls("x")).returncode for cls in every} <= set(outputs.MEANINGS)


def test_a_database_that_is_gone_and_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(exc: BaseException) -> Ran:
        monkeypatch.setattr(
            "temporalex_django.management.read_commands.apply_filters", lambda *_: (_ for _ in ()).throw(exc)
        )
        return shell("list")

    gone = fail(OperationalError("no such table: temporalex_instance\nDETAIL: secret"))
    assert gone.status == outputs.NOT_SET_UP
    assert "manage.py temporalex doctor" in gone.err
    assert "secret" not in gone.err
    assert fail(KeyboardInterrupt()).status == 130


@pytest.mark.usefixtures("runs")
def test_what_a_terminal_would_obey_is_written_out() -> None:
    Instance.objects.filter(workflow_id="basket-1").update(
        blocked={"code": "exception", "error": "\x1b[2Jgone [bold]\u202e", "attempt": 1}
    )

    assert "\\x1b[2Jgone [bold]\\u202e" in plain(shell("list", "--blocked", "true"))
    assert "\x1b" not in plain(shell("list", "--blocked", "true", tty=True))
    assert plain(shell("list", "--blocked", "true", encoding="ascii")).isascii()
    assert fits("list", plain(shell("list", "--blocked", "true", "--json", encoding="ascii")))


def test_general_options_may_stand_behind_the_subcommand() -> None:
    ran = shell("list", "--settings", "tests.settings", "--skip-checks", "-v", "2", "--no-color")
    assert plain(ran) == "no runs\n"
    ran = shell("switches", "show", "--settings=tests.settings", "--no-color")
    assert plain(ran) == "nothing is switched off\n"


def test_a_list_of_many_is_read_in_pages(django_assert_max_num_queries: Any) -> None:
    for number in range(7):
        Basket.start(id=f"many-{number}")

    with pytest.MonkeyPatch.context() as patched, django_assert_max_num_queries(14) as asked:
        patched.setattr("temporalex_django.management.read_commands._PAGE_SIZE", 2)
        found = fits("list", plain(shell("list", "--json", "--skip-checks")))
    assert [one["id"] for one in found] == [f"many-{number}" for number in reversed(range(7))]
    pages = [one["sql"] for one in asked if 'ORDER BY "temporalex_instance"."id" DESC' in one["sql"]]
    assert len(pages) == 4
    assert all("LIMIT 2" in page for page in pages)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_pipe_that_closes(subprocess_env: dict[str, str]) -> None:
    Basket.start(id="one")
    line = f"{sys.executable} manage.py temporalex list --json --skip-checks | true; echo ${{PIPESTATUS[0]}}"

    ran = subprocess.run(["bash", "-c", line], env=subprocess_env, capture_output=True, text=True, check=False)

    assert (ran.stdout.strip(), ran.stderr) == ("141", "")


def test_what_a_subcommand_does_not_take_is_told_with_its_own_usage(capsys: pytest.CaptureFixture[str]) -> None:
    command = Command()
    command._called_from_command_line = True  # type: ignore[attr-defined] # Django sets it so
    parser = command.create_parser("manage.py", "temporalex")
    for given, usage in (
        (["update", "b-1", "add", '{"n": 1}'], "usage: manage.py temporalex update "),
        (["switches", "on", "queue", "default", "more"], "usage: manage.py temporalex switches on "),
        (["--nonsense", "list"], "usage: manage.py temporalex [-h]"),
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(given)
        said = capsys.readouterr().err
        assert usage in said and "unrecognized arguments: " in said
