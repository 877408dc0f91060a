"""A server that is away, or that this project may not use: nothing is lost, and each error names the server."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone
from temporalio.service import RPCError, RPCStatusCode

from temporalex_django import NoReply, Ok, Reply, Stop, Workflow, activity, api, errors, query, update
from temporalex_django.backends.cluster import calls, reads, worker
from temporalex_django.backends.cluster.client import ClusterClient
from temporalex_django.management import doctor
from temporalex_django.models import Instance, Outbox, Permit
from temporalex_django.operations.base import CODE
from temporalex_django.operations.idempotency import IdempotentRequest
from temporalex_django.present.diagnosis import diagnose
from temporalex_django.workers.loop import run_until_idle
from tests.integration.cluster.conftest import WorkerMaker
from tests.support.cluster_worker import running_worker
from tests.support.server_proxy import CERTIFICATES, ServerProxy
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

QUEUE = f"cluster-away-{uuid.uuid4().hex[:8]}"


class MirroredAway(Workflow):
    task_queue = QUEUE

    @query("any")
    @staticmethod
    def any(state: Any) -> Any:
        return state

    async def run(self, args: Any) -> Any:
        total = await api.phase(
            0,
            signal={"stop": lambda _, total: Stop(total), "note": lambda number, total: NoReply(total + number)},
            update={"add": update(lambda number, total: Reply(total + number, total + number))},
        )
        return Ok(total)


@pytest.fixture
def proxy(cluster: dict[str, Any], settings: Any) -> Iterator[Callable[..., ServerProxy]]:
    """A function that puts a proxy between this project and the server; ``tls`` are the settings of its TLS."""
    proxies: list[ServerProxy] = []

    def make(tls: dict[str, str] | None = None, **options: Any) -> ServerProxy:
        proxies.append(ServerProxy(cluster["ADDRESS"], tls=tls is not None, **options))
        entry = {**cluster, "ADDRESS": proxies[-1].address, **({} if tls is None else {"TLS": tls})}
        settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": entry}
        return proxies[-1]

    yield make
    for each in proxies:
        each.close()


def start() -> Any:
    return MirroredAway.start(None, id=f"away-{uuid.uuid4().hex[:6]}")


def send_outbox() -> None:
    Outbox.objects.update(due_at=timezone.now())
    run_until_idle()


def _add(handle: Any, answers: list[Any]) -> None:
    try:
        answers.append(handle.update("add", 5, id="once", timeout=40))
    finally:
        connections.close_all()


@activity
def attend_after_outage(number: int) -> int:
    return number + 1


class LimitedAway(Workflow):
    task_queue = QUEUE

    async def run(self, args: Any) -> Any:
        return Ok(await attend_after_outage(args))


def test_a_worker_that_does_not_reach_the_server_keeps_no_places_from_others(
    proxy: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``concurrency=1``, its place would stop the queue for as long as this worker is cut off."""
    monkeypatch.setattr(worker, "_WATCH_SECONDS", 0.3)
    server = proxy()
    settings.TEMPORALEX = {**settings.TEMPORALEX, "QUEUES": {QUEUE: {"concurrency": 1}}}
    with running_worker(QUEUE):
        wait_for(lambda: Permit.objects.filter(started=False).exists())
        server.stop()
        wait_for(lambda: not Permit.objects.exists())
        server.start()
        assert LimitedAway.start(1, id=f"away-{uuid.uuid4().hex[:6]}").result(timeout=60) == 2
        wait_for(lambda: Permit.objects.filter(started=False).exists())  # for the next one


def certificates(**names: str) -> dict[str, str]:
    return {key: str(CERTIFICATES / name) for key, name in names.items()}


def test_a_certificate_of_the_right_authority_is_accepted(proxy: Any) -> None:
    client = certificates(CA="authority.pem", CERT="client.pem", KEY="client.key")
    proxy(client, asks_for_certificate=True)
    start()
    assert not Outbox.objects.exists()
    assert Instance.objects.get().cluster_run_id is not None


@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        pytest.param(certificates(CA="other_authority.pem"), "InvalidCertificate", id="another authority"),
        pytest.param(  # this server closes the connection without a reason
            certificates(CA="authority.pem", CERT="expired_client.pem", KEY="expired_client.key"),
            "cannot be reached",
            id="expired key",
        ),
    ],
)
def test_a_certificate_that_is_refused_keeps_the_start_and_says_so(
    proxy: Any, settings: Any, tls: Any, reason: str
) -> None:
    server = proxy(tls, asks_for_certificate="CERT" in tls)
    handle = start()
    row = Outbox.objects.get()
    assert (row.tries, row.failed, handle.status) == (1, None, "pending")
    assert server.address in str(row.error)
    assert reason in str(row.error)
    with pytest.raises(errors.UpdateTimeout, match=server.address):
        handle.update("add", 1, timeout=5)
    right = certificates(CA="authority.pem", CERT="client.pem", KEY="client.key")
    cluster = settings.TEMPORALEX["CLUSTER"]
    settings.TEMPORALEX = {**settings.TEMPORALEX, "CLUSTER": {**cluster, "TLS": right}}
    send_outbox()
    assert not Outbox.objects.exists()


def test_an_api_key_that_has_expired_keeps_the_start(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def expired(*_: Any, **__: Any) -> Any:
        raise RPCError("the API key has expired", RPCStatusCode.UNAUTHENTICATED, b"")

    with monkeypatch.context() as patch:
        patch.setattr(calls, "start_request", expired)
        start()
        row = Outbox.objects.get()
        assert row.failed is None
        assert "UNAUTHENTICATED: the API key has expired" in str(row.error)
    send_outbox()
    assert not Outbox.objects.exists()


def test_a_file_that_is_missing_is_named(proxy: Any) -> None:
    proxy({"CA": "nowhere.pem"})
    start()
    row = Outbox.objects.get()
    assert "TEMPORALEX['CLUSTER']['TLS']['CA']" in str(row.error)


def test_what_is_sent_while_the_server_is_away_arrives_in_order(proxy: Any, start_worker: WorkerMaker) -> None:
    server = proxy()
    with start_worker():
        handle = start()
        wait_for(lambda: handle.describe().waiting_for)
        server.stop()
        handle.signal("note", 3)
        handle.signal("note", 4)
        handle.signal("stop")
        assert [row.failed for row in Outbox.objects.all()] == [None, None, None]
        server.start()
        send_outbox()
        wait_for(lambda: not Outbox.objects.exists() or send_outbox())
        assert handle.result(timeout=20) == 7


def test_an_update_during_which_the_server_goes_away_is_taken_once(proxy: Any, start_worker: WorkerMaker) -> None:
    server = proxy()
    answers: list[Any] = []
    with start_worker():
        handle = start()
        wait_for(lambda: handle.describe().waiting_for)
        server.stop()
        sender = threading.Thread(target=partial(_add, handle, answers))
        sender.start()
        assert answers == []
        server.start()
        sender.join(40)
        assert answers == [5]
        assert handle.update("add", 5, id="once") == 5
        server.stop()
        with pytest.raises(errors.UpdateTimeout):
            handle.update("add", 6, id="late", timeout=0.5)
        server.start()
        assert handle.update("add", 6, id="late", timeout=20) == 11


def test_a_worker_polls_again_when_the_server_is_back(proxy: Any, start_worker: WorkerMaker) -> None:
    server = proxy()
    with start_worker():
        first = start()
        wait_for(lambda: first.describe().waiting_for)
        server.stop()
        second = start()
        assert Outbox.objects.get().kind == "temporal.start"
        server.start()
        send_outbox()
        wait_for(lambda: not Outbox.objects.exists() or send_outbox())
        second.signal("stop")
        assert second.result(timeout=40) == 0


def use_up_tries() -> None:
    """Let the next try of each row be one more than a row has."""
    Outbox.objects.update(tries=40)


def test_an_outage_of_any_length_fails_no_start_and_loses_no_signal(proxy: Any, start_worker: WorkerMaker) -> None:
    server = proxy()
    server.stop()
    handle = start()
    handle.signal("note", 3)
    for _ in range(2):
        use_up_tries()
        send_outbox()
    assert [(row.failed, row.tries > 0) for row in Outbox.objects.order_by("id")] == [(None, True), (None, True)]
    assert handle.status == "pending"
    Outbox.objects.update(created_at=timezone.now() - timedelta(seconds=40))
    assert {"cluster_away", "outbox_late"} <= {
        finding.code for finding in diagnose(doctor.load_project(), now=timezone.now())
    }
    server.start()
    with start_worker():
        send_outbox()
        wait_for(lambda: not Outbox.objects.exists() or send_outbox())
        handle.signal("stop")
        assert handle.result(timeout=40) == 3


def test_a_start_that_is_too_late_after_an_outage_times_out(proxy: Any) -> None:
    server = proxy()
    server.stop()
    handle = MirroredAway.start(
        None, id=f"away-{uuid.uuid4().hex[:6]}", start_before=timezone.now() + timedelta(seconds=1)
    )
    use_up_tries()
    wait_for(lambda: Instance.objects.filter(start_before__lt=timezone.now()).exists())
    send_outbox()
    assert handle.status == "timed_out"


@pytest.fixture
def answers_with(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that makes the server answer starts of ``ids`` (None: all) with a status."""
    start_request = calls.start_request

    def answer(status: RPCStatusCode, ids: Any = None) -> None:
        def refuse(client: Any, run: Any, **options: Any) -> Any:
            if ids is None or any(name in run.cluster_id for name in ids):
                raise RPCError("so it says", status, b"")
            return start_request(client, run, **options)

        monkeypatch.setattr(calls, "start_request", refuse)

    return answer


@pytest.mark.parametrize(
    ("status", "is_kept"),
    [
        (RPCStatusCode.UNAVAILABLE, True),
        (RPCStatusCode.DEADLINE_EXCEEDED, True),
        (RPCStatusCode.UNAUTHENTICATED, True),
        (RPCStatusCode.PERMISSION_DENIED, True),
        (RPCStatusCode.RESOURCE_EXHAUSTED, True),
        (RPCStatusCode.INTERNAL, False),
    ],
)
def test_a_server_that_takes_nothing_uses_up_no_try(answers_with: Any, status: RPCStatusCode, is_kept: bool) -> None:
    answers_with(status)
    handle = start()
    for _ in range(2):
        use_up_tries()
        send_outbox()
    assert (Outbox.objects.get().failed is None, handle.status == "pending") == (is_kept, is_kept)


def test_a_row_that_alone_gets_no_answer_is_given_up(answers_with: Any) -> None:
    answers_with(RPCStatusCode.RESOURCE_EXHAUSTED, ["away-large"])
    large = MirroredAway.start(None, id="away-large")
    use_up_tries()
    send_outbox()
    assert large.status == "pending"
    start()
    use_up_tries()
    send_outbox()
    assert large.status == "failed"
    (dead,) = Outbox.objects.refused()
    assert "RESOURCE_EXHAUSTED" in str(dead.failed)


def test_a_query_without_a_server_times_out_and_names_what_it_says(
    proxy: Any, start_worker: WorkerMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = proxy()
    with start_worker():
        handle = start()
        wait_for(lambda: handle.describe().waiting_for)
        server.stop()
        monkeypatch.setattr(reads, "QUERY_SECONDS", 1.0)
        with pytest.raises(errors.QueryTimeout):
            handle.query("any")
        request = IdempotentRequest(by=CODE, key="k", request=b"skip")
        for operation in (handle.reset, partial(handle.skip_timer, 1), partial(handle.retry_activity, 1)):
            with pytest.raises((errors.QueryTimeout, errors.UpdateTimeout)), request.run_once_at_once():
                operation()
            request.check_duplicate()  # the key is free
        server.start()
        handle.terminate()

    def denied(*_: Any, **__: Any) -> Any:
        raise RPCError("no access to the namespace", RPCStatusCode.PERMISSION_DENIED, b"")

    with start_worker():
        handle = start()
        wait_for(lambda: handle.describe().waiting_for)
        monkeypatch.setattr(ClusterClient, "call", denied)
        with pytest.raises(errors.QueryTimeout, match="PERMISSION_DENIED: no access"):
            handle.query("any")


@pytest.mark.parametrize("is_text_known", [True, False])
def test_a_query_whose_connection_breaks_is_no_failure_of_the_code(
    cluster: Any, start_worker: WorkerMaker, monkeypatch: pytest.MonkeyPatch, is_text_known: bool
) -> None:
    """The SDK gives no other sign of it than a text."""
    handle = start()
    with start_worker():
        wait_for(lambda: handle.describe().waiting_for)

    def break_off(*args: Any, **options: Any) -> Any:
        raise RPCError("transport error" if is_text_known else "ten is too much", RPCStatusCode.UNKNOWN, b"")

    monkeypatch.setattr(ClusterClient, "call", break_off)
    with pytest.raises(errors.QueryTimeout if is_text_known else errors.QueryFailed):
        handle.query("anything")
