"""Effects on the world are refused anywhere below a step of workflow code, also deep inside a library."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core import mail
from django.core.cache import cache, caches
from django.core.mail.backends.locmem import EmailBackend

from temporalex_django import NoReply, Ok, Reply, Stop, activity, api, errors, query, update
from temporalex_django.core.determinism import guard
from tests.support.runs import flow, once, work

#: An installed package, as the guard sees it: only what it does counts, not that it is called.
VENDORED = """
import http.client, os, smtplib, socket, sqlite3, subprocess, urllib.request

def deep(act, *args):
    return inner(act, *args)

def inner(act, *args):
    return act(*args)

def connect(port):
    deep(socket.create_connection, ("127.0.0.1", port), 1)

def connect_by_http(port):
    deep(http.client.HTTPConnection("127.0.0.1", port, timeout=1).request, "GET", "/")

def fetch(port):
    deep(urllib.request.urlopen, f"http://127.0.0.1:{port}/", None, 1)

def send_by_smtp(port):
    deep(smtplib.SMTP, "127.0.0.1", port, None, 1)

def connect_by_udp(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        deep(sock.sendto, b"", ("127.0.0.1", port))

def look_up(port):
    deep(socket.getaddrinfo, "localhost", port)

def look_up_by_name(port):
    deep(socket.gethostbyname, "localhost")

def run_process(port):
    deep(subprocess.run, ["true"])

def run_shell(port):
    deep(os.system, "true")

def spawn(port):
    deep(os.posix_spawn, "/bin/true", ["true"], {})

def write(port, path):
    deep(open, path, "w").close()

def append_by_os(port, path):
    os.close(deep(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))

def open_database(port, path):
    deep(sqlite3.connect, path).close()

def read(path):
    with deep(open, path) as file:
        return file.read()
"""
ACTS = [
    *("connect", "connect_by_http", "fetch", "send_by_smtp", "connect_by_udp", "look_up", "look_up_by_name"),
    *("run_process", "run_shell", "spawn"),
    *("write", "append_by_os", "open_database"),
]


@pytest.fixture(scope="module")
def vendored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("lib") / "site-packages"
    folder.mkdir()
    path = folder / "vendored_for_guard.py"
    path.write_text(VENDORED)
    spec = importlib.util.spec_from_file_location("vendored_for_guard", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["vendored_for_guard"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["vendored_for_guard"]


@pytest.fixture
def port() -> Iterator[int]:
    """Somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def acting(vendored: Any, act: str, port: int, path: Path) -> Any:
    more = (str(path),) if act in ("write", "append_by_os", "open_database") else ()
    return lambda: getattr(vendored, act)(port, *more)


@pytest.mark.parametrize("act", ACTS)
def test_libraries_below_a_step_act_on_nothing(env: Any, vendored: Any, port: int, tmp_path: Path, act: str) -> None:
    """TX-189: the error names the line of the project that called the library, and says to use an activity."""
    path = tmp_path / "file"
    act_now = acting(vendored, act, port, path)

    async def run(self: Any, args: Any) -> Any:
        act_now()
        return Ok()

    with pytest.raises(
        errors.WorkflowFailed, match=r"DeterminismViolation: .* in workflow code \(.*test_effects_below_steps.*activity"
    ):
        env.start(flow(run)).result()
    assert not path.exists()


@pytest.mark.parametrize("act", ["fetch", "run_process", "write"])
def test_activities_act(env: Any, vendored: Any, tmp_path: Path, act: str) -> None:
    """TX-189: outside of workflow code, in the middle of a turn too, nothing is refused."""
    acted: list[str] = []

    def do() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, contextlib.suppress(TimeoutError):  # nobody answers
            getattr(vendored, act)(server.getsockname()[1], *([str(tmp_path / "file")] if act == "write" else ()))
        acted.append(act)

    @activity(name="effects.external")
    def external() -> None:
        do()

    @activity(name="effects.atomic", atomic=True)
    def atomic() -> None:
        do()

    async def body() -> Any:
        await external()
        await atomic()

    env.start(once(body)).result()
    assert acted == [act, act]


@pytest.fixture
def logger(tmp_path: Path) -> Iterator[logging.Logger]:
    """One whose file is opened when it is first used."""
    handler = logging.FileHandler(tmp_path / "run.log", delay=True)
    logger = logging.getLogger("effects")
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    handler.close()


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that opens a file for writing."""
    name = f"opens_a_file_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_log_handlers_and_imports_open_what_they_like(
    logger: logging.Logger, importable: str, env: Any, vendored: Any, tmp_path: Path
) -> None:
    """TX-189: and files may be read by libraries."""

    async def run(self: Any, args: Any) -> Any:
        logger.error("seen")
        importlib.import_module(importable)
        vendored.read(str(tmp_path / "run.log"))
        return Ok("well")

    assert env.start(flow(run)).result() == "well"
    assert "seen" in (tmp_path / "run.log").read_text()
    assert (tmp_path / "imported").exists()


def test_pure_contexts_are_workflow_code(env: Any, vendored: Any, tmp_path: Path) -> None:
    """TX-189."""
    path = str(tmp_path / "file")

    def validate(args: Any, state: Any) -> None:
        vendored.write(0, path)

    def look(state: Any) -> Any:
        vendored.write(0, path)

    async def run(self: Any, args: Any) -> Any:
        api.publish_state({})
        updates = {"add": update(lambda _, s: Reply("added", s), validator=validate)}
        await api.phase({}, signal={"stop": lambda _, s: Stop(s)}, update=updates)
        await api.wait_condition(lambda: vendored.write(0, path))
        return Ok()

    h = env.start(flow(run, look=query("look")(staticmethod(look))))
    with pytest.raises(errors.TemporalexError, match=r"a file opened for writing in workflow code \(.*test_effects"):
        h.query("look")
    with pytest.raises(errors.TemporalexError, match="a file opened for writing in workflow code"):
        h.update("add")
    h.signal("stop")
    with pytest.raises(errors.WorkflowFailed, match="a file opened for writing in workflow code"):
        h.result()
    assert not Path(path).exists()


KEPT_CACHE, KEPT_MAILER = caches["default"], EmailBackend()


def _message() -> mail.EmailMessage:
    return mail.EmailMessage("subject", "body", "from@example.com", ["to@example.com"])


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (lambda send: send(mail.send_mail, "subject", "body", "from@example.com", ["to@example.com"]), "mail"),
        (lambda send: send(mail.send_mass_mail, [("subject", "body", "from@example.com", ["to@example.com"])]), "mail"),
        (lambda send: send(lambda: mail.EmailMultiAlternatives("s", "b", "f@example.com", ["t@example.com"]).send()), "mail"),
        (lambda send: send(lambda: KEPT_MAILER.send_messages([_message()])), "mail"),
        (lambda send: send(cache.set, "key", 1), "the cache"),
        (lambda send: send(cache.get, "key"), "the cache"),
        (lambda send: send(cache.incr, "key"), "the cache"),
        (lambda send: send(lambda: caches["default"]), "the cache"),
        (lambda send: send(KEPT_CACHE.set, "key", 1), "the cache"),
        (lambda send: send(lambda: KEPT_CACHE.get_or_set("key", 1)), "the cache"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("through", ["directly", "a library"])
def test_mail_and_cache_belong_in_activities(env: Any, vendored: Any, act: Any, what: str, through: str) -> None:
    """TX-189: with the backends of tests, too, which open no connection."""
    mail.outbox = []
    cache.clear()
    call = vendored.deep if through == "a library" else (lambda fn, *args: fn(*args))

    async def run(self: Any, args: Any) -> Any:
        await work()
        act(call)
        return Ok()

    with pytest.raises(
        errors.WorkflowFailed, match=r"in workflow code \(.*test_effects_below_steps.*activity"
    ) as raised:
        env.start(flow(run)).result()
    assert what.removeprefix("the ") in str(raised.value)
    assert mail.outbox == []
    assert cache.get("key") is None


def test_activities_send_mail_and_use_the_cache(env: Any) -> None:
    mail.outbox = []

    @activity(name="effects.post", atomic=True)
    def post() -> Any:
        cache.set("key", "kept")
        mail.send_mail("subject", "body", "from@example.com", ["to@example.com"])
        return cache.get("key")

    async def body() -> Any:
        return await post()

    assert env.start(once(body)).result() == "kept"
    assert len(mail.outbox) == 1


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets it; whoever was warned once is warned again."""
    before = guard.mode()
    monkeypatch.setattr(guard, "_warned", set())
    yield guard.configure
    guard.configure(before)


def test_warnings_only_and_off(mode: Any, env: Any, vendored: Any, tmp_path: Path) -> None:
    """The setting holds for these as for calls."""

    async def run(self: Any, args: Any) -> Any:
        vendored.write(0, args)
        return Ok()

    mode("warn")
    with pytest.warns(errors.DeterminismWarning, match="a file opened for writing in workflow code"):
        env.start(flow(run), str(tmp_path / "warned")).result()
    mode("off")
    env.start(flow(run), str(tmp_path / "off")).result()
    assert (tmp_path / "warned").exists()
    assert (tmp_path / "off").exists()


def test_handlers_stay_usable(env: Any, vendored: Any, port: int) -> None:
    """A refusal is an ordinary exception of the handler that it meets."""

    def fetch(args: Any, state: Any) -> Any:
        vendored.fetch(port)
        return NoReply(state)

    async def run(self: Any, args: Any) -> Any:
        await api.phase({}, signal={"stop": lambda _, s: Stop(s)}, update={"fetch": fetch})
        return Ok("well")

    h = env.start(flow(run))
    with pytest.raises(errors.UpdateFailed, match="a network connection in workflow code|a lookup of a network name"):
        h.update("fetch")
    h.signal("stop")
    assert h.result() == "well"
