"""A generator of load, in its own process: ``python -m benchmarks.load PORT KIND CLIENTS SECONDS [ID ...]``.

Each client keeps a connection and sends the next request when it has the answer. It sends only to this machine, and
prints JSON.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.measures import milliseconds

_HEADERS = {"Content-Type": "application/json", "X-Bench-User": "operator"}


def _request(kind: str, id: str) -> tuple[str, dict[str, Any]]:
    if kind == "start":
        return "/api/instances/", {"workflow": "Parked"}
    if kind == "signal":
        return f"/api/instances/{id}/signals/seen/", {"payload": 1}
    return f"/api/instances/{id}/updates/count/", {"args": 1}


def _client(port: int, kind: str, ids: Sequence[str], until: float, took: list[float], answers: Counter[int]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    number = 0
    while time.perf_counter() < until:
        path, body = _request(kind, ids[number % len(ids)] if ids else "")
        began = time.perf_counter()
        connection.request("POST", path, json.dumps(body), _HEADERS)
        answer = connection.getresponse()
        answer.read()
        took.append(time.perf_counter() - began)
        answers[answer.status] += 1
        number += 1
    connection.close()


def main(port: str, kind: str, clients: str, seconds: str, *ids: str) -> None:
    count, began = int(clients), time.perf_counter()
    took: list[list[float]] = [[] for _ in range(count)]
    answers: list[Counter[int]] = [Counter() for _ in range(count)]
    threads = [
        threading.Thread(
            target=_client,
            # each client has its own runs: two that update the same run would measure how one waits for the other
            args=(int(port), kind, ids[n::count], began + float(seconds), took[n], answers[n]),
        )
        for n in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - began
    every = [one for client in took for one in client]
    figures = {"per_s": round(len(every) / spent), **(milliseconds(every) if every else {})}
    print(json.dumps({**figures, "answers": dict(sum(answers, Counter()))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
