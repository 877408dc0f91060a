"""A proxy in front of the server of Temporal: it speaks TLS, and it can be away."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

CERTIFICATES: Final = Path(__file__).with_name("certificates")


class ServerProxy:
    """Forwards connections to ``127.0.0.1:port`` to ``target``, while it is not ``stop``ped.

    With ``tls``, clients connect by TLS; with ``asks_for_certificate`` they need one of the authority of the tests.
    """

    def __init__(self, target: str, *, tls: bool = False, asks_for_certificate: bool = False) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._context = _server_context(asks_for_certificate) if tls else None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[Any]] = set()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Take connections."""
        self._call(self._start())

    def stop(self) -> None:
        """End all connections and refuse new ones, as a server that is away does."""
        self._call(self._stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self._context)

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for pipe in [*self._pipes]:
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._pipes.add(task)
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        pipes = [
            asyncio.ensure_future(pipe) for pipe in (_pipe(reader, upstream_writer), _pipe(upstream_reader, writer))
        ]
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        for pipe in pipes:
            pipe.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)
        for end in (writer, upstream_writer):
            end.transport.abort()
            with suppress(OSError):
                await end.wait_closed()
        self._pipes.discard(task)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


def _server_context(asks_for_certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "authority.pem"))
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    context.set_alpn_protocols(["h2"])
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # `openssl ca` writes no key identifiers
    if asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
