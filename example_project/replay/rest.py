"""The replay's client of the shop's web server: the standard library, one kept-alive connection per thread."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT = 20.0
AGAIN = {HTTPStatus.ACCEPTED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class LostAnswer(Exception):
    """The shop may or may not have received the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status and decoded body of an answer."""

    status: int
    body: Any

    @property
    def ok(self) -> bool:
        """True if the shop did it."""
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES and self.status != HTTPStatus.ACCEPTED

    @property
    def again(self) -> bool:
        """True if asking again makes sense: it is not done yet, or the shop had a temporary failure."""
        return self.status in AGAIN or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def reason(self) -> str:
        """The reason for a refusal, in the words of the shop."""
        if isinstance(self.body, dict):
            return f"{self.status} {self.body.get('code', '')} {self.body.get('detail') or self.body.get('title') or ''}".strip()
        return f"{self.status} {self.body!r}"[:300]


class Connection:
    """The connections of all threads to one web server."""

    def __init__(self, base_url: str, *, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._root = parts.path.rstrip("/")
        self._headers = {**(headers or {}), "Accept": "application/json"}
        self._local = threading.local()

    def send(
        self, method: str, path: str, *, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Send JSON and return the answer. Raises ``LostAnswer``."""
        connection: HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        given = self._headers | (headers or {}) | ({} if body is None else {"Content-Type": "application/json"})
        try:
            connection.request(method, self._root + quote(path, safe="/?=.&-_"), body=body, headers=given)
            response = connection.getresponse()
            status, raw = response.status, response.read()
        except (OSError, HTTPException) as error:
            connection.close()  # the next request opens it again
            message = f"{method} {path}: {type(error).__name__} {error}"
            raise LostAnswer(message) from error
        try:
            decoded = json.loads(raw) if raw else None
        except ValueError:
            decoded = raw[:300].decode(errors="replace")
        return Answer(status=status, body=decoded)


class Shop:
    """The REST API of one shop."""

    def __init__(self, base_url: str, *, token: str) -> None:
        self.base_url = base_url
        self._connection = Connection(base_url, headers={"Authorization": f"Token {token}"})

    def start(self, run_id: str, *, workflow: str, args: dict[str, Any]) -> Answer:
        """Start a run with this id."""
        return self._send("POST", "", body={"workflow": workflow, "id": run_id, "args": args})

    def start_by_value(self, value: str, *, workflow: str, args: dict[str, Any]) -> Answer:
        """Start a run for this business value."""
        return self._send("POST", "", body={"workflow": workflow, "value": value, "args": args})

    def update(self, run_id: str, name: str, *, args: Any, update_id: str, wait: float = 5) -> Answer:
        """Send an update and wait for its outcome; sending it again with the same id is safe."""
        return self._send("POST", f"{run_id}/updates/{name}/?wait={wait:g}", body={"args": args, "id": update_id})

    def query(self, run_id: str, name: str) -> Answer:
        """Ask a query."""
        return self._send("POST", f"{run_id}/queries/{name}/", body={})

    def signal(self, run_id: str, name: str) -> Answer:
        """Send a signal."""
        return self._send("POST", f"{run_id}/signals/{name}/", body={})

    def describe(self, run_id: str) -> Answer:
        """Read the run's row."""
        return self._send("GET", f"{run_id}/")

    def result(self, run_id: str, *, wait: float = 5) -> Answer:
        """Wait for the result of a run; 202 when it is still open."""
        return self._send("GET", f"{run_id}/result/?wait={wait:g}")

    def _send(self, method: str, path: str, *, body: Any = None) -> Answer:
        content = None if body is None else json.dumps(body).encode()
        return self._connection.send(method, f"/api/instances/{path}", body=content)


def value(body: Any) -> Any:
    """Take the value of a query, update or result out of its envelope."""
    return body["result"] if isinstance(body, dict) and "result" in body else body
