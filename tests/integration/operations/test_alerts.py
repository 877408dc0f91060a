"""Alerts: new problems are reported in one message, and none twice in fifteen minutes."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from smtplib import SMTPRecipientsRefused
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.core import mail
from django.utils import timezone

from temporalex_django import Ok, Workflow, conf
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.engine import policy
from temporalex_django.errors import NotConfigured
from temporalex_django.models import Alert, Instance, Lease, Outbox
from temporalex_django.operations import alerts as rounds
from temporalex_django.operations.alerts import AlertMessage, is_round_due, run_round, send_mail
from temporalex_django.testing import drain

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.of_the_tables("problems of workers of the tables")]

SECRET = "4111 1111 1111 1111"
MAIL = {"MAIL": ["ops@shop.example"], "BASE_URL": "https://shop.example", "NAME": "shop"}
received: list[AlertMessage] = []


class AlertedOrder(Workflow):
    unexpected_error = "block"

    async def run(self, args: Any) -> Any:
        if args is None:
            return Ok(None)
        raise KeyError(SECRET)


def receive(message: AlertMessage) -> None:
    received.append(message)


@pytest.fixture(autouse=True)
def alerts(settings: Any) -> Any:
    """Return a function that changes the setting."""

    def change(**entries: Any) -> None:
        settings.TEMPORALEX = {**settings.TEMPORALEX, "ALERTS": entries}

    change(**MAIL)
    received.clear()
    yield change
    await_calls()
    rounds._under_way.clear()


def await_calls() -> None:
    for delivery in rounds._under_way.values():
        delivery.thread.join(60)
        assert not delivery.thread.is_alive()


def block(count: int = 1) -> None:
    AlertedOrder.start_many([SECRET] * count)
    drain()


def do_round() -> bool:
    """Do a round as if the last one was a minute ago."""
    Lease.objects.update(until=timezone.now() - timedelta(seconds=1))
    return run_round("default")


def let_pass(**period: float) -> None:
    for alert in Alert.objects.exclude(sent_at=None):
        alert.sent_at -= timedelta(**period)
        alert.save()


def mailed() -> list[str]:
    """Return the texts of the entries about blocked runs in all mails."""
    lines = [line for message in mail.outbox for line in message.body.splitlines()]
    return [line for line in lines if "blocked (unexpected" in line or "is blocked" in line or "are blocked" in line]


def test_a_mail_has_the_sentence_of_a_run_and_a_link() -> None:
    block()

    assert run_round("default")

    (message,) = mail.outbox
    run = Instance.objects.get()
    assert message.to == ["ops@shop.example"]
    assert message.subject.startswith("[shop] ")
    assert f"AlertedOrder {run.workflow_id}: " in message.body
    assert f"temporalex doctor {run.workflow_id}" in message.body
    assert "https://shop.example/admin/temporalex_django/instance/console/runs/?" in message.body
    assert "workflow=AlertedOrder" in message.body
    assert SECRET not in message.body + message.subject


def test_a_storm_is_one_message() -> None:
    block(60)
    do_round()
    assert len(mail.outbox) == 1
    assert len(mailed()) == 1
    assert "60 runs of AlertedOrder are blocked" in mailed()[0]


def test_a_problem_is_reported_again_when_more_runs_have_it() -> None:
    block()
    do_round()
    assert not do_round()
    block()
    assert not do_round(), "within fifteen minutes"
    let_pass(minutes=15)
    assert do_round()
    assert [line.partition(" AlertedOrder")[0] for line in mailed()] == ["error: 1 run of", "error: 2 runs of"]
    let_pass(minutes=16)
    assert not do_round(), "nothing is new"
    let_pass(days=1)
    assert do_round(), "a reminder after a day"


def test_fewer_runs_than_before_are_reported_after_a_repair() -> None:
    block(3)
    do_round()
    Instance.objects.all().delete()
    do_round()
    let_pass(minutes=16)
    block()
    assert do_round()
    assert [line.partition(" AlertedOrder")[0] for line in mailed()] == ["error: 3 runs of", "error: 1 run of"]


def test_a_problem_that_comes_back_is_new() -> None:
    block()
    do_round()
    Instance.objects.all().delete()
    Alert.objects.update(seen_at=timezone.now() - timedelta(hours=2))
    do_round()
    assert not Alert.objects.filter(cause__startswith="blocked").exists()
    block()
    assert do_round()
    assert len(mailed()) == 2


def test_a_mail_server_that_is_away_loses_nothing() -> None:
    block()
    with fail_for("ops@shop.example"):
        assert not do_round()
    assert not Alert.objects.exclude(sent_at=None).exists()
    assert do_round()
    assert len(mailed()) == 1


def fail_for(*refused: str) -> Any:
    """A mail server that refuses some addresses."""

    def deliver(subject: str, text: str, sender: str, to: list[str]) -> None:
        if {*to} & {*refused}:
            raise SMTPRecipientsRefused(dict.fromkeys(to, (550, b"no")))
        send_mail(subject, text, sender, to)

    return patch("temporalex_django.operations.alerts.send_mail", deliver)


def test_a_mail_server_that_refuses_keeps_nothing_from_the_function(alerts: Any) -> None:
    alerts(**MAIL, CALL=f"{__name__}.receive")
    block()
    with fail_for("ops@shop.example"):
        assert [do_round() for _ in range(3)] == [True, False, False]
    assert (len(received), mail.outbox) == (1, [])
    assert do_round(), "the server is back"
    assert not do_round()
    assert (len(received), len(mailed())) == (1, 1)


@pytest.mark.parametrize("error", [ValueError(SECRET), SystemExit(1)])
def test_a_function_that_raises_repeats_no_mail(
    alerts: Any, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    alerts(**MAIL, CALL=f"{__name__}.receive")
    block()
    calls: list[AlertMessage] = []

    def refuse(message: AlertMessage) -> None:
        calls.append(message)
        raise error

    with patch(f"{__name__}.receive", refuse):
        assert [do_round() for _ in range(10)] == [True] + [False] * 9
    assert (len(calls), len(mailed())) == (10, 1)
    assert f"could not be sent to {__name__}.receive" in caplog.text
    assert SECRET not in caplog.text
    assert do_round()
    assert (len(received), len(mailed())) == (1, 1)


def test_an_address_that_is_refused_keeps_nothing_from_the_others(alerts: Any) -> None:
    alerts(MAIL=["gone@shop.example", "ops@shop.example", "ann@shop.example"])
    block()
    with fail_for("gone@shop.example"):
        assert [do_round() for _ in range(3)] == [True, False, False]
    assert [message.to for message in mail.outbox] == [["ops@shop.example"], ["ann@shop.example"]]
    alerts(MAIL=["ops@shop.example", "new@shop.example"])
    assert do_round(), "the new address knows nothing yet"
    assert mail.outbox[2].to == ["new@shop.example"]
    assert {*Alert.objects.values_list("channel", flat=True)} == {"ops@shop.example", "new@shop.example"}


def test_a_function_that_does_not_return_keeps_nothing_from_the_others(
    alerts: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(policy, "ALERT_CALL_SECONDS", 0.1)
    alerts(**MAIL, CALL=f"{__name__}.receive")
    block()
    released, calls = threading.Event(), []

    def hang(message: AlertMessage) -> None:
        calls.append(message)
        assert released.wait(60)

    with patch(f"{__name__}.receive", hang):
        do_round()
        do_round()
        assert (len(calls), len(mailed())) == (1, 1)
        assert f"{__name__}.receive has not answered yet" in caplog.text
        released.set()
        await_calls()
        do_round()
    assert len(calls) == 1, "it has received the message, only late"
    assert not Alert.objects.filter(sent_at=None).exists()


def test_a_silent_mail_server_is_given_up(
    alerts: Any, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(policy, "ALERT_CALL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        backend = "django.core.mail.backends.smtp.EmailBackend"
        if hasattr(mail, "mailers"):  # Django 6.1
            settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": {"host": host, "port": port}}}
        else:
            settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = backend, host, port
        alerts(**MAIL, CALL=f"{__name__}.receive")
        block()
        assert do_round()
        assert len(received) == 1
        await_calls()
        do_round()
        await_calls()
    assert "could not be sent to ops@shop.example and will be retried: SMTPServerDisconnected" in caplog.text


def test_one_process_at_a_time_looks(alerts: Any) -> None:
    block()
    assert is_round_due("default")
    assert run_round("default")
    assert not is_round_due("default")
    assert not run_round("default")
    Lease.objects.update(until=timezone.now())
    assert is_round_due("default")


def test_messages_that_a_destination_has_refused_are_reported_without_their_text() -> None:
    body = {"failed": {"code": "workflow_closed", "error": SECRET, "at": ""}}
    Outbox.objects.create(
        pk=uuid4(),
        chain_id=uuid4(),
        destination="warehouse",
        kind="note",
        created_at=timezone.now(),
        due_at=timezone.now(),
        **body,
    )
    assert run_round("default")
    (message,) = mail.outbox
    assert "1 message to warehouse was refused: workflow_closed" in message.body
    assert SECRET not in message.body


def test_a_cluster_that_does_not_answer_is_reported(settings: Any) -> None:
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {"ADDRESS": "127.0.0.1:1"}}
    assert run_round("default")
    (message,) = mail.outbox
    assert "The Temporal cluster at 127.0.0.1:1 does not answer" in message.body


def test_without_the_setting_nothing_is_read(alerts: Any, django_assert_num_queries: Any) -> None:
    alerts()
    with django_assert_num_queries(0):
        assert not is_round_due("default")
        assert not run_round("default")


def test_a_function_of_the_project_receives_the_message(alerts: Any) -> None:
    alerts(CALL=f"{__name__}.receive")
    block()
    do_round()
    (message,) = received
    entry = next(entry for entry in message.entries if entry.code == "blocked")
    assert (entry.severity, entry.count, entry.link) == ("error", 1, "")
    assert mail.outbox == []


def test_a_web_process_reports_that_no_worker_is_left() -> None:
    AlertedOrder.start(None)
    storage = DjangoStorage("default")
    Lease.objects.create(name="alerts", until=storage.now() - timedelta(seconds=60))
    with patch.object(rounds.connections, "close_all"):
        rounds.look("default")
        assert mail.outbox == [], "a worker may come yet"
        Lease.objects.update(until=storage.now() - timedelta(seconds=121))
        rounds.look("default")
        assert "No live workers" in mail.outbox[0].body
        Lease.objects.update(until=storage.now() - timedelta(seconds=121))
        rounds.look("default")
    assert len(mail.outbox) == 1


def test_a_request_makes_a_web_process_look_once_a_minute(client: Any) -> None:
    looks: list[str] = []
    with patch.object(rounds, "look", looks.append), patch.object(rounds, "_looked_at", -1000.0):
        for _ in range(3):
            client.get("/admin/login/")
        for thread in threading.enumerate():
            if thread.name == "temporalex-alerts":
                thread.join(10)
    assert looks == ["default"]


def test_workers_call_the_heartbeat_address(alerts: Any, caplog: pytest.LogCaptureFixture) -> None:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    alerts(**MAIL, HEARTBEAT_URL=f"http://127.0.0.1:{server.server_port}/alive")
    try:
        do_round()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert paths == ["/alive"]
    do_round()
    assert "the heartbeat address of ALERTS did not answer" in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        {"MAILS": []},
        {"MAIL": "ops@shop.example"},
        {"MAIL": ["ops"]},
        {"NAME": "shop"},
        {"MAIL": ["ops@shop.example"], "BASE_URL": "shop.example"},
    ],
)
def test_a_wrong_setting_is_named(alerts: Any, value: dict[str, Any]) -> None:
    alerts(**value)
    assert "ALERTS" in " ".join(conf.read()[1])


def test_a_function_that_does_not_exist_is_named(alerts: Any) -> None:
    alerts(CALL="tests.nowhere.receive")
    assert "tests.nowhere" in " ".join(conf.problems())
    with pytest.raises(NotConfigured, match=r"ALERTS.*tests\.nowhere\.receive"):
        conf.alert_function()


@pytest.mark.parametrize(
    ("text", "subject"),
    [("short\nand plain", "[shop] 1 problem: short and plain"), ("x" * 300, None)],
    ids=["short", "long"],
)
def test_a_subject_is_one_line_of_bounded_length(text: str, subject: str | None) -> None:
    entry = rounds.AlertEntry(
        code="late", about="", severity="error", text=text, next_step="Look.", count=1, since=timezone.now()
    )
    message = rounds.build_message([entry], project="shop")

    assert message.subject == subject or (len(message.subject) == 120 and message.subject.endswith("x…"))
    assert "\n" not in message.subject
