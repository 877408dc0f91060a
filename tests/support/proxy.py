"""A proxy between psycopg and PostgreSQL that loses the answer to a COMMIT.

The server did it, the client never hears so.

It forwards everything else as it is. It can refuse connections too, as a server that is away does.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104


class Proxy:
    """Listens on ``port`` of 127.0.0.1 for one server. ``lost`` counts the commits whose answers it kept back."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._marker: str | None = None
        self._open: set[socket.socket] = set()
        self._listening: socket.socket | None = None
        self.lost = 0
        self._cut_after: int | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    def listen(self) -> None:
        """Take connections from now on; before, and after ``close``, they are refused."""
        listening = socket.create_server(("127.0.0.1", self.port))
        self._listening = listening
        threading.Thread(target=self._accept, args=[listening], daemon=True).start()

    def close(self) -> None:
        if self._listening is not None:
            _end(self._listening)
        self.cut()

    def cut(self) -> None:
        """End every connection that there is; new ones are taken."""
        for end in list(self._open):
            _end(end)

    def lose_the_commit_of(self, statement: str) -> None:
        """The next COMMIT after a statement that contains this loses its answer and its connection."""
        with self._lock:
            self._marker = statement

    def cut_next(self, *, after: int) -> None:
        """The next connection ends after it has sent so many messages behind its beginning."""
        self._cut_after = after

    def limit(self) -> int | None:
        """How many messages the connection that begins now may send; None: as many as it likes."""
        with self._lock:
            most, self._cut_after = self._cut_after, None
            return most

    @property
    def has_cut(self) -> bool:
        """Whether somebody came whose connection was to be cut."""
        return self._cut_after is None

    def takes(self, statements: list[str]) -> bool:
        """Whether the transaction of these is the one whose COMMIT gets no answer."""
        with self._lock:
            if self._marker is None or not any(self._marker in statement for statement in statements):
                return False
            self._marker = None
            self.lost += 1
            return True

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = _connect(self._settings)
            self._open |= {client, server}
            _Session(self, client, server).start()


class _Session:
    """One connection: two threads that forward."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.silent = threading.Event()
        self.prepared: dict[bytes, str] = {}
        self.statements: list[str] = []  # of the transaction that is open

    def start(self) -> None:
        for target in (self._to_server, self._to_client):
            threading.Thread(target=self._until_closed, args=[target], daemon=True).start()

    def _until_closed(self, forward: Any) -> None:
        with suppress(OSError):
            forward()
        _end(self.client)
        _end(self.server)

    def _to_client(self) -> None:
        while data := self.server.recv(65536):
            if self.silent.is_set():
                return  # the server has answered, so it has committed
            self.client.sendall(data)

    def _to_server(self) -> None:
        left = self.proxy.limit()
        self._startup()
        while header := _exactly(self.client, 5):
            if left is not None:
                if not left:
                    return
                left -= 1
            kind, size = struct.unpack(">cI", header)
            body = _exactly(self.client, size - 4)
            statement = self._statement(kind, body)
            if statement is not None:
                if statement.strip().lower().startswith("commit"):
                    if self.proxy.takes(self.statements):
                        self.silent.set()
                    self.statements.clear()
                self.statements.append(statement)
            self.server.sendall(header + body)

    def _startup(self) -> None:
        while True:
            if not (header := _exactly(self.client, 8)):
                raise ConnectionError("the connection ended before it began")
            size, code = struct.unpack(">II", header)
            body = _exactly(self.client, size - 8)
            if code not in (_SSL_REQUEST, _GSS_REQUEST):
                self.server.sendall(header + body)
                return
            self.client.sendall(b"N")  # in clear text: it is to be read here

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        """The text of what is executed: a simple query, or what was bound."""
        if kind == b"Q":
            return body.rstrip(b"\0").decode(errors="replace")
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self.prepared[name] = text.decode(errors="replace")
        elif kind == b"B":
            return self.prepared.get(body.split(b"\0", 2)[1])
        return None


def _connect(settings: dict[str, Any]) -> socket.socket:
    host, port = settings["HOST"] or "127.0.0.1", settings["PORT"] or 5432
    if host.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server
    return socket.create_connection((host, int(port)))


def _exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes; fewer when the connection ended."""
    data = b""
    while len(data) < size and (more := source.recv(size - len(data))):
        data += more
    if data and len(data) < size:
        raise ConnectionError("the connection ended in the middle of a message")
    return data


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextmanager
def proxied(settings: dict[str, Any], *, listen: bool = True) -> Iterator[Proxy]:
    """A proxy for the length of the block, in front of the server of these Django settings."""
    proxy = Proxy(dict(settings))
    try:
        if listen:
            proxy.listen()
        yield proxy
    finally:
        proxy.close()


@contextmanager
def through(proxy: Proxy, connection: Any) -> Iterator[None]:
    """This process's own connections of an alias go through the proxy while the block lasts."""
    settings = connection.settings_dict
    before = {name: settings[name] for name in ("HOST", "PORT")}
    connection.close()
    settings.update(HOST="127.0.0.1", PORT=proxy.port)
    try:
        yield
    finally:
        connection.close()
        settings.update(before)


def environment(env: dict[str, str], proxy: Proxy, settings: dict[str, Any]) -> dict[str, str]:
    """Of a process that reaches the test's database through the proxy."""
    user, password = settings["USER"], settings.get("PASSWORD") or ""
    url = f"postgres://{user}:{password}@127.0.0.1:{proxy.port}/{settings['NAME']}"
    return {**env, "DATABASE_URL": url}
