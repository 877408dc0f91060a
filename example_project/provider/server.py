"""The HTTP server of the ledger: POST /charges and /refunds with an Idempotency-Key, GET /report."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from hashlib import blake2b
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from example_project.provider.ledger import KeyConflict, Ledger, Request

OPERATIONS = {"/charges": "charge", "/refunds": "refund"}
MAX_BODY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The unreliability of the provider. The same seed and purchase give the same weather, call by call."""

    seed: int = 0
    fail: float = 0.05
    late: float = 0.02
    late_seconds: float = 3.0

    def outcome(self, *, reference: str, number: int) -> str:
        """Return what happens to call ``number`` of a purchase.

        It depends on the purchase and not on the key: keys hold the id of a run, which differs from play to play.
        """
        digest = blake2b(f"{self.seed}:{reference}:{number}".encode(), digest_size=8).digest()
        draw = int.from_bytes(digest) / 2**64
        if draw < self.fail / 2:
            return "failed before booking"
        if draw < self.fail:
            return "failed after booking"
        return "late" if draw < self.fail + self.late else "answered"


class Handler(BaseHTTPRequestHandler):
    """One connection of a shop."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Provider

    def do_GET(self) -> None:
        """Answer /report?after=N&without=PREFIX."""
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        after, without = query.get("after", ["0"])[-1], query.get("without", ["-"])[-1]
        if address.path != "/report" or not after.isdecimal():
            self._answer(HTTPStatus.NOT_FOUND, {"error": "the only page is /report?after=N&without=PREFIX"})
        else:
            self._answer(HTTPStatus.OK, self.server.ledger.report(after=int(after), without=without))

    def do_POST(self) -> None:
        """Book a charge or a refund, as reliably as the weather allows."""
        request = self._request()
        if request is None:
            error = "send POST /charges or /refunds with Idempotency-Key and {reference, cents > 0}"
            self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": error})
            return
        ledger = self.server.ledger
        call = ledger.open_call(request)
        outcome = self.server.weather.outcome(reference=request.reference, number=call.number)
        if outcome == "failed before booking":
            ledger.close_call(call, outcome=outcome)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "out of order"})
            return
        try:
            booking, repeated = ledger.book(call, request=request)
        except KeyConflict as exc:
            ledger.close_call(call, outcome="refused")
            self._answer(HTTPStatus.CONFLICT, {"error": str(exc)})
            return
        ledger.close_call(call, outcome=outcome)
        if outcome == "failed after booking":
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "out of order, perhaps after booking"})
            return
        if outcome == "late":
            self.server.closing.wait(self.server.weather.late_seconds)
        body = {"id": f"{request.operation}-{booking}", "cents": request.cents, "repeated": repeated}
        self._answer(HTTPStatus.OK if repeated else HTTPStatus.CREATED, body)

    def _request(self) -> Request | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            return None
        try:
            body: Any = json.loads(self.rfile.read(int(length)))
        except ValueError:
            return None
        key, operation = self.headers.get("Idempotency-Key", ""), OPERATIONS.get(self.path)
        if not key or operation is None or not isinstance(body, dict):
            return None
        reference, cents = body.get("reference"), body.get("cents")
        if not isinstance(reference, str) or type(cents) is not int or not reference or cents <= 0:
            return None
        return Request(operation=operation, key=key, reference=reference, cents=cents)

    def _answer(self, status: HTTPStatus, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True  # the shop did not wait for a late answer, as intended

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the ledger has every call."""


class Provider(ThreadingHTTPServer):
    """The provider on 127.0.0.1."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, *, ledger: Ledger, weather: Weather) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.ledger = ledger
        self.weather = weather
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        """The address to call."""
        return f"http://127.0.0.1:{self.server_address[1]}"
