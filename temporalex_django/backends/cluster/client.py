"""The client of this process for its Temporal cluster: one, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from google.protobuf.message import Message
from temporalio.client import Client
from temporalio.service import TLSConfig

from temporalex_django.backends.cluster.logs import core_runtime
from temporalex_django.conf import cluster_address, codec, get_settings
from temporalex_django.core.failures import error_line
from temporalex_django.core.names import TEMPORAL
from temporalex_django.db.outbox import DeliveryFailed
from temporalex_django.errors import NotConfigured
from temporalex_django.temporal.payloads import Payloads

T = TypeVar("T")

log = logging.getLogger("temporalex_django.backends")

#: Seconds that one call may take, retries by the SDK included, where the operation names no time.
CALL_SECONDS: Final = 10.0
#: The server takes so many updates of a run at a time, and lets the next one hang.
IN_FLIGHT: Final = 10
_CONNECT_SECONDS: Final = 5.0
#: Seconds after which the key and the certificates are read anew.
CREDENTIALS_SECONDS: Final = 30.0


class ClusterUnavailable(DeliveryFailed):
    """Raised if the cluster does not answer in time. What was sent may have arrived."""

    def __init__(self, text: str) -> None:
        super().__init__(text, uses_try=False)


class ClusterClient:
    """A client of the SDK, which connects at the first call; ``settings`` is the setting ``CLUSTER``.

    All calls run on the event loop of one thread. Code that is not async waits for their futures.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.address = cluster_address(settings)
        self.payloads = Payloads(codec())
        self.namespace: str = settings.get("NAMESPACE", "default")
        self.identity = f"temporalex-{os.getpid()}"
        self._client: Client | None = None
        self._credentials: dict[str, Any] | None = None
        self._read_again_at = 0.0
        self._connecting: asyncio.Lock | None = None
        # By chain. A semaphore exists as long as an update of the chain is on its way.
        self._update_slots: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="temporalex-cluster", daemon=True)
        self._thread.start()

    def call(self, make: Callable[[Client], Coroutine[Any, Any, T]], *, timeout: float | None = CALL_SECONDS) -> T:
        """Run ``make(client)`` and return its result; ``timeout`` is in seconds (None: wait for ever).

        Raises ``ClusterUnavailable`` if there is no answer in time, and the errors of the SDK.
        """
        future = self.submit(make)
        try:
            return future.result(timeout)
        except FutureTimeout:
            future.cancel()
            raise self.unavailable(timeout) from None

    def ask(self, request: Message, *, timeout: float | None = CALL_SECONDS) -> Any:
        """Send a request of the protocol and return the answer. See ``call`` and ``send``."""
        return self.call(lambda sdk: send(sdk, request), timeout=timeout)

    def update_slots(self, chain_id: UUID) -> asyncio.Semaphore:
        """Return the semaphore that limits how many updates of a chain are on their way. Call it on the event loop."""
        slots = self._update_slots.get(chain_id)
        if slots is None:
            slots = self._update_slots[chain_id] = asyncio.Semaphore(IN_FLIGHT)
        return slots

    def submit(self, make: Callable[[Client], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run ``make(client)`` in the thread of the client, and return the future of its result."""
        return asyncio.run_coroutine_threadsafe(self._run(make), self._loop)

    def unavailable(self, seconds: float | None) -> ClusterUnavailable:
        """Return the error for a cluster that has not answered within ``seconds``."""
        return ClusterUnavailable(f"the Temporal cluster at {self.address} has not answered within {seconds:g} s")

    async def _run(self, make: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        return await make(await self._connected())

    async def _connected(self) -> Client:
        if self._client is None or time.monotonic() >= self._read_again_at:
            self._connecting = self._connecting or asyncio.Lock()
            async with self._connecting:
                await self._use_credentials()
        assert self._client is not None
        return self._client

    async def _use_credentials(self) -> None:
        """Read the key and the certificates anew if that is due, and connect with them if they have changed.

        Until the cluster takes the new ones, the old connection is used.
        """
        if self._client is not None and time.monotonic() < self._read_again_at:
            return
        self._read_again_at = time.monotonic() + CREDENTIALS_SECONDS
        try:
            credentials = await asyncio.to_thread(read_credentials, self.settings)
            if self._client is not None and credentials == self._credentials:
                return
            self._client = await self._connect(credentials)
        except Exception as exc:  # a file that is being replaced, a function of the project, or the cluster
            if self._client is None:
                self._read_again_at = 0.0
                raise
            log.warning(
                "could not use the new key or certificates of the cluster, continuing with the earlier ones: %s",
                error_line(exc),
            )
        else:
            self._credentials = credentials

    async def _connect(self, credentials: dict[str, Any]) -> Client:
        try:
            return await asyncio.wait_for(
                Client.connect(
                    self.address,
                    namespace=self.namespace,
                    **credentials,
                    data_converter=self.payloads.data_converter(),
                    identity=self.identity,
                    runtime=core_runtime(),
                    connect_timeout=timedelta(seconds=_CONNECT_SECONDS),
                ),
                _CONNECT_SECONDS,
            )
        except (RuntimeError, TimeoutError) as exc:
            raise ClusterUnavailable(f"the Temporal cluster at {self.address} cannot be reached: {exc}") from exc

    def close(self) -> None:
        """Stop the thread. Calls that wait for an answer are cancelled."""
        asyncio.run_coroutine_threadsafe(self._cancel_calls(), self._loop).result(_CONNECT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CONNECT_SECONDS)
        self._loop.close()

    async def _cancel_calls(self) -> None:
        """Cancel what runs on the loop, and wait until it has ended."""
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._loop.shutdown_asyncgens()


async def send(sdk: Client, request: Message, **options: Any) -> Any:
    """Send a request of the protocol and return the answer. The method has the name of its class, as in the protocol.

    The request gets the namespace and the identity of the client. ``options`` are those of the SDK's method.
    """
    for field in ("namespace", "identity"):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, getattr(sdk, field))
    name = type(request).__name__.removesuffix("Request")
    method = getattr(sdk.workflow_service, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
    return await method(request, **options)


def read_credentials(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key and the TLS options of the setting ``CLUSTER`` as they are now, as options of the SDK.

    A key may be a function, and certificates are read from their files. Raises ``NotConfigured`` for a file that cannot
    be read.
    """
    key, tls = settings.get("API_KEY"), settings.get("TLS", False)
    if not isinstance(tls, bool):
        tls = TLSConfig(
            server_root_ca_cert=_read_file(tls, "CA"),
            client_cert=_read_file(tls, "CERT"),
            client_private_key=_read_file(tls, "KEY"),
        )
    return {"api_key": key() if callable(key) else key, "tls": tls}


def _read_file(tls: Mapping[str, str], key: str) -> bytes | None:
    if key not in tls:
        return None
    try:
        return Path(tls[key]).read_bytes()
    except OSError as exc:
        raise NotConfigured(f"TEMPORALEX['CLUSTER']['TLS'][{key!r}]: {exc}") from exc


_lock = threading.Lock()
_client: ClusterClient | None = None
_pid = 0


def cluster_client() -> ClusterClient:
    """Return the client of this process. It is created at the first call, and anew after a fork or new settings."""
    global _client, _pid
    settings = get_settings().CLUSTER
    with _lock:
        if _client is None or _pid != os.getpid() or _client.settings is not settings:
            if _client is not None and _pid == os.getpid():
                _client.close()
            _client, _pid = ClusterClient(settings), os.getpid()
        return _client


def _forget_lock() -> None:
    """Make a new lock in a child process: another thread of the parent may have held the old one."""
    global _lock  # noqa: PLW0603 - as above
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)

#: The destination of rows of the outbox that go to the cluster.
DESTINATION: Final = TEMPORAL
