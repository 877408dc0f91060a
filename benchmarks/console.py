"""``console``: processor time of the console's pages over few and over many runs, and of pages that stay open."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any, Final

from benchmarks import server
from benchmarks.processes import cpu_seconds, family

#: Fewer have no run that is open: the numbers of the database go by thousands.
FEW: Final = 1_000
#: Pages that operators keep open, and seconds between two polls of one.
PAGES: Final = 100
EVERY: Final = 5.0
#: Events of the short history; that of the long one is in `benchmarks.million`.
_FEW_EVENTS: Final = 300
_ROUNDS: Final = 7
_CALLS: Final = 5
_ADDRESS: Final = re.compile(r'data-hx-get="([^"]+)"')
_CONSOLE: Final = "/admin/temporalex_django/instance/console/"


def run(runs: int) -> dict[str, Any]:
    """Measure the pages over a thousand runs and over ``runs``; on the larger database, polls of open pages as well."""
    few = _pages(FEW)
    many = _pages(runs)
    return {
        "runs": runs,
        "few_ms": few,
        "many_ms": many,
        "growth": {name: round(many[name] / few[name], 2) for name in few},
        "list_to_rest": round(many["list"] / many["rest list"], 2),
        "timeline": _timelines(),
        **_open_pages(),
    }


def _timelines() -> dict[str, float]:
    """Return the milliseconds of the page of a run with a long history, and of one with a short history."""
    from temporalex_django.models import Chain, HistoryEvent

    long_chain = Chain.objects.order_by("-length")[0]
    short_chain = Chain.objects.get(open_key=f"k{int((long_chain.open_key or '')[1:]) - 1}")
    events = [*HistoryEvent.objects.filter(run_id=long_chain.run_id, seq__lte=_FEW_EVENTS)]
    HistoryEvent.objects.filter(run_id=short_chain.run_id).delete()
    for event in events:
        event.run_id = short_chain.run_id
    HistoryEvent.objects.bulk_create(events)
    Chain.objects.filter(pk=short_chain.pk).update(length=len(events), activations=events[-1].activation)
    client = _client("operator")
    short, long = (_cpu_ms(client, f"{_CONSOLE}runs/{chain.run_id}/") for chain in (short_chain, long_chain))
    return {"short_ms": short, "long_ms": long, "growth": round(long / short, 2)}


def _pages(runs: int) -> dict[str, float]:
    """Build a database of so many runs, and return the milliseconds of processor time of each page."""
    from django.contrib.auth import get_user_model

    from benchmarks.million import build

    server.empty()
    get_user_model().objects.all().delete()
    one = build(runs)["long_one"]
    client = _operator()
    return {name: _cpu_ms(client, address) for name, address in _addresses(one)}


def _addresses(one: str) -> Iterator[tuple[str, str]]:
    yield "overview", _CONSOLE
    yield "list", f"{_CONSOLE}runs/"
    yield "run", f"/admin/temporalex_django/instance/{one}/change/"
    yield "workers", f"{_CONSOLE}workers/"
    yield "rest list", "/api/instances/"


def _operator() -> Any:
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.create_superuser("operator"))
    return client


def _cpu_ms(client: Any, address: str, *, fresh: bool = True) -> float:
    """Return the median milliseconds of processor time of a request: of this process, and of the server's."""
    return _median_ms(lambda: _get(client, address, fresh=fresh))


def _median_ms(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(_ROUNDS):
        before = _cpu()
        for _ in range(_CALLS):
            call()
        times.append((_cpu() - before) * 1000 / _CALLS)
    return round(max(statistics.median(times), 0.01), 2)


def _cpu() -> float:
    others = cpu_seconds(family(server.postmaster)) if server.postmaster else 0.0
    return time.process_time() + others


def _get(client: Any, address: str, *, fresh: bool = True) -> Any:
    from temporalex_django.console import live

    if fresh:
        live._values.clear()
    answer = client.get(address, follow=True)
    assert answer.status_code in (200, 204), (address, answer.status_code)
    return answer


def _open_pages() -> dict[str, Any]:
    """Return the share of a processor that a hundred open pages take, half of them overviews and half of them lists.

    Without changes each poll is answered with status 204. While runs change all the time, each poll of a list is
    rendered, and a process renders the overview once in five seconds for each kind of user.
    """
    client = _client("operator")
    polls = PAGES / EVERY
    unchanged = {}
    for name in ("", "runs/"):
        address = _poll_address(client, f"{_CONSOLE}{name}")
        assert _get(client, address, fresh=False).status_code == 204
        unchanged[name] = _cpu_ms(client, address, fresh=False)

    def poll_list() -> None:
        assert _get(client, stale, fresh=False).status_code == 200

    stale = re.sub(r"mark=[^&]*", "mark=0", _poll_address(client, f"{_CONSOLE}runs/"))
    rendered_list, rendered_overview = _median_ms(poll_list), _cpu_ms(client, _CONSOLE)
    busy = polls / 2 * (rendered_list + unchanged[""]) + rendered_overview / EVERY
    return {
        "open_pages": PAGES,
        "unchanged_poll_ms": {"overview": unchanged[""], "list": unchanged["runs/"]},
        "changed_poll_ms": {"overview": rendered_overview, "list": rendered_list},
        "core_share_unchanged": round(polls / 2 * sum(unchanged.values()) / 1000, 3),
        "core_share_changing": round(busy / 1000, 3),
    }


def _client(name: str) -> Any:
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.get(username=name))
    return client


def _poll_address(client: Any, address: str) -> str:
    """Return the address of the next poll of a page that has been polled once: a list has its mark from then on."""
    for _ in range(2):
        found = _ADDRESS.search(_get(client, address).content.decode())
        if found is not None:
            address = unescape(found[1])
    return address
