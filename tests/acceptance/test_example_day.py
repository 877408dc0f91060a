"""Playing a day: the file, the provider, the report; and, slower, a day against real processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib import error, request

import pytest

from example_project.provider.ledger import KeyConflict, Ledger, Request
from example_project.provider.server import Provider, Weather
from example_project.replay.buyer import Buyer, order_number, sale
from example_project.replay.clock import Clock
from example_project.replay.day import Day, Problem, read_day
from example_project.replay.metric_books import COUNTERS
from example_project.replay.person import Stuck, Visit
from example_project.replay.report import CartReport, Check, NotCompared, OrderReport, Report, worst
from example_project.replay.rest import Answer, LostAnswer
from example_project.shop.orders import ORDER, REVIEW_ABOVE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.once  # a play has a database of its own

ROOT = Path(__file__).resolve().parents[2]
REAL_DAY = ROOT / "example_project" / "data" / "2017-06-14" / "basket_lines.csv"
HEADER = "basket_id,household_id,store_id,timestamp,product_id,quantity,sales_value,retail_disc,coupon_disc"
GOOD = "b1,788,360,2017-06-14 00:01:42,1134483,1,9.99,2.00,0.00"


def day_of(folder: Path, *lines: str | bytes) -> Day:
    file = folder / "basket_lines.csv"
    file.write_bytes(
        b"\n".join(line if isinstance(line, bytes) else line.encode() for line in (HEADER, *lines)) + b"\n"
    )
    return read_day(file)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_real_day_is_valid_to_the_last_line() -> None:
    day = read_day(REAL_DAY)

    assert day.problems == []
    assert len(day.baskets) == 406
    assert sum(len(basket.lines) for basket in day.baskets) == 3404
    assert sum(basket.units for basket in day.baskets) == sum(day.units().values()) == 336_074
    assert sum(basket.cents for basket in day.baskets) == 1_102_498
    assert [basket.id for basket in day.baskets if basket.cents == 0] == ["33656946313"]
    assert sum(1 for basket in day.baskets if basket.cents > REVIEW_ABOVE) == 83


def test_lines_arrive_twenty_seconds_apart_and_the_last_one_at_the_stamp(tmp_path: Path) -> None:
    (basket,) = day_of(tmp_path, GOOD, GOOD, GOOD).baskets

    assert [(basket.stamp - basket.arrival(number)).total_seconds() for number in (1, 2, 3)] == [40, 20, 0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD.replace(",1,9.99", ",-1,9.99"), "quantity '-1'"),
        (GOOD.replace(",1,9.99", ",1.5,9.99"), "quantity '1.5'"),
        (GOOD.replace(",1,9.99", ",٣,9.99"), "quantity"),
        (GOOD.replace("9.99", "9.9"), "'9.9' is not an amount"),
        (GOOD.replace("9.99", "-9.99"), "'-9.99' is not an amount"),
        (GOOD.replace("9.99", "NaN"), "'NaN' is not an amount"),
        (GOOD.replace("1134483", ""), "'' is not a product id"),
        (GOOD.replace("2017-06-14 00", "2017-06-31 00"), "timestamp"),
        (GOOD.replace("00:01:42", "00:01:43"), "timestamp"),
        (GOOD + ",7", "10 fields instead of 9"),
        ("b1,788", "2 fields instead of 9"),
        (GOOD.replace("788", '"788'), "unexpected end of data"),
    ],
)
def test_malformed_line_keeps_its_basket_from_starting_and_no_other(tmp_path: Path, line: str, reason: str) -> None:
    other = GOOD.replace("b1", "b2")

    day = day_of(tmp_path, GOOD, line, other)

    (problem,) = day.problems
    assert (problem.line, problem.basket) == (3, "b1")
    assert reason in problem.reason
    assert [basket.id for basket in day.baskets] == ["b2"]


def test_bytes_that_are_no_text_spoil_one_line(tmp_path: Path) -> None:
    day = day_of(tmp_path, GOOD.encode().replace(b"1134483", b"11\xff83"), GOOD.replace("b1", "b2"))

    assert [(problem.line, problem.basket) for problem in day.problems] == [(2, "b1")]
    assert [basket.id for basket in day.baskets] == ["b2"]


def test_line_without_a_usable_basket_is_reported_and_stops_nobody(tmp_path: Path) -> None:
    day = day_of(tmp_path, GOOD, GOOD.replace("b1", "../b1"))

    assert [(problem.line, problem.basket) for problem in day.problems] == [(3, "")]
    assert [basket.id for basket in day.baskets] == ["b1"]


def test_file_without_its_columns_is_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "lines.csv"
    file.write_text("basket_id,quantity\nb1,1\n")

    day = read_day(file)

    assert day.problems == [Problem(line=1, reason="no column timestamp, product_id, sales_value")]
    assert day.baskets == []


def test_empty_file_is_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "lines.csv"
    file.write_text("")

    assert [problem.reason for problem in read_day(file).problems] == ["the file is empty"]


def test_byte_order_mark_and_windows_line_ends_are_no_problem(tmp_path: Path) -> None:
    file = tmp_path / "lines.csv"
    file.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n{GOOD}\r\n\r\n".encode())

    day = read_day(file)

    assert day.problems == []
    assert len(day.baskets) == 1


# --- the provider -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite3")
    yield ledger
    ledger.close()


def charge(key: str = "k1", reference: str = "b1", cents: int = 999) -> Request:
    return Request(operation="charge", key=key, reference=reference, cents=cents)


def test_ledger_books_once_by_key_and_counts_repeats(ledger: Ledger) -> None:
    first = ledger.open_call(charge())
    booked = ledger.book(first, request=charge())
    second = ledger.open_call(charge())
    again = ledger.book(second, request=charge())

    assert (first.number, second.number) == (1, 2)
    assert booked == (first.id, False)
    assert again == (first.id, True)
    report = ledger.report()
    assert (report["calls"], report["repeats"], report["charges"], report["cents"]) == (2, 1, 1, 999)


def test_ledger_finds_purchases_that_were_charged_under_two_keys(ledger: Ledger) -> None:
    for key in ("k1", "k2"):
        request_ = charge(key=key)
        ledger.book(ledger.open_call(request_), request=request_)

    assert ledger.report()["doubles"] == 1


def test_ledger_refuses_a_key_for_another_amount(ledger: Ledger) -> None:
    ledger.book(ledger.open_call(charge()), request=charge())

    with pytest.raises(KeyConflict):
        ledger.book(ledger.open_call(charge(cents=1)), request=charge(cents=1))


def test_report_counts_from_a_call_on_and_leaves_out_the_web_shop(ledger: Ledger) -> None:
    for key in ("k1", "k2", "web"):
        request_ = charge(key=key, reference="web-1" if key == "web" else key)
        last = ledger.open_call(request_)
        ledger.book(last, request=request_)

    report = ledger.report(after=1, without="web-")

    assert (report["last"], report["calls"], report["charges"]) == (last.id, 1, 1)


def test_weather_is_seeded_and_has_the_shares_that_were_asked() -> None:
    weather = Weather(seed=3)

    outcomes = [weather.outcome(reference=str(number), number=1) for number in range(20_000)]

    assert outcomes == [Weather(seed=3).outcome(reference=str(number), number=1) for number in range(20_000)]
    assert outcomes.count("late") / 20_000 == pytest.approx(0.02, abs=0.004)
    assert outcomes.count("failed before booking") / 20_000 == pytest.approx(0.025, abs=0.004)
    assert outcomes.count("failed after booking") / 20_000 == pytest.approx(0.025, abs=0.004)


def post(url: str, *, key: str, body: Any, timeout: float = 5) -> tuple[int, Any]:
    call = request.Request(url + "/charges", data=json.dumps(body).encode(), headers={"Idempotency-Key": key})
    try:
        with request.urlopen(call, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


@pytest.fixture
def provider(ledger: Ledger, request: pytest.FixtureRequest) -> Iterator[Provider]:
    with Provider(0, ledger=ledger, weather=getattr(request, "param", Weather(fail=0, late=0))) as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield provider
        provider.closing.set()
        provider.shutdown()
        thread.join()


def test_provider_answers_a_repeated_key_with_the_first_charge(provider: Provider) -> None:
    first = post(provider.url, key="k1", body={"reference": "b1", "cents": 5})
    second = post(provider.url, key="k1", body={"reference": "b1", "cents": 5})

    assert first == (201, {"id": "charge-1", "cents": 5, "repeated": False})
    assert second == (200, {"id": "charge-1", "cents": 5, "repeated": True})
    assert post(provider.url, key="k1", body={"reference": "b1", "cents": 6})[0] == 409


@pytest.mark.parametrize(
    "body", [{}, [], {"reference": "b1"}, {"reference": "b1", "cents": 0}, {"reference": "", "cents": 1}]
)
def test_provider_refuses_what_it_does_not_understand(provider: Provider, body: Any) -> None:
    assert post(provider.url, key="k1", body=body)[0] == 422
    assert provider.ledger.report()["calls"] == 0


@pytest.mark.parametrize("provider", [Weather(fail=0, late=1, late_seconds=30)], indirect=True)
def test_late_answer_was_booked_all_the_same(provider: Provider) -> None:
    with pytest.raises(TimeoutError):
        post(provider.url, key="k1", body={"reference": "b1", "cents": 5}, timeout=0.2)

    assert provider.ledger.report()["charges"] == 1


# --- the report -------------------------------------------------------------------------------------------------------


def report_of(tmp_path: Path, *lines: str, seen: int = 1, kills_wanted: int = 0) -> Report:
    day = day_of(tmp_path, GOOD, *lines)
    result = {"total": "9.99", "lines": 1, "units": 1, "confirmed_by": "customer", "charge": {"attempt": 2}}
    visit = Visit(basket=day.baskets[0], confirms=True, added=1, waits=[0.004], result=result)
    return CartReport(
        day=day,
        visits=[visit],
        checks=[Check(name="baskets completed", expected=1, seen=seen)],
        seconds=2.0,
        kills_wanted=kills_wanted,
    )


def test_report_of_a_day_that_reconciles(tmp_path: Path) -> None:
    report = report_of(tmp_path)

    assert report.code == 0
    facts = report.as_dict()
    assert (facts["sales"], facts["units"], facts["runs_per_second"]) == ("9.99", 1, 0.5)
    assert facts["update_seconds"] == {"p50": 0.004, "p99": 0.004}
    assert "All 1 figures match the file." in report.text()


def test_a_figure_that_is_not_compared_is_named_with_the_reason(tmp_path: Path) -> None:
    report = replace(report_of(tmp_path), not_compared=[NotCompared(name="metrics", reason="nobody counts")])

    assert report.code == 0
    assert "NOT COMPARED: metrics: nobody counts" in report.text()
    assert "All 1 figures match the file. 1 were not compared." in report.text()
    assert report.as_dict()["not_compared"] == [{"name": "metrics", "reason": "nobody counts"}]


def test_difference_gives_one_and_is_named(tmp_path: Path) -> None:
    report = report_of(tmp_path, seen=2)

    assert report.code == 1
    # Somebody looks for the reason: it comes before the figures.
    assert report.text().splitlines()[0] == "DIFFERENCE: baskets completed: 2; the file has 1"


def test_malformed_line_gives_two_but_a_difference_outranks_it(tmp_path: Path) -> None:
    bad = GOOD.replace("b1", "b2").replace("9.99", "x")

    assert report_of(tmp_path, bad).code == 2
    assert report_of(tmp_path, bad, seen=0).code == 1
    assert "basket_lines.csv:3: 'x' is not an amount" in report_of(tmp_path, bad).text()


def test_fewer_kills_than_asked_give_one(tmp_path: Path) -> None:
    report = report_of(tmp_path, kills_wanted=2)

    assert report.code == 1
    assert "0 kills instead of 2" in report.text()


def test_customer_in_trouble_gives_one_and_is_named(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    report.visits[0].problem = "start: 503"

    assert report.code == 1
    assert "TROUBLE: basket b1: start: 503" in report.text()


STEPS = {
    "validate_order": {"total": "45.00", "cents": 4500, "lines": 1, "units": 1},
    "charge_payment": {"id": "charge-1", "cents": 4500, "attempt": 1},
    "send_invoice": {"number": 7, "total": "45.00"},
}


@pytest.mark.parametrize(
    ("review", "figures"),
    [
        ({}, {"reviewed": 0, "approved": 0, "overdue": 0}),
        ({"review": {"by": "cleo"}}, {"reviewed": 1, "approved": 1, "overdue": 0}),
        ({"review": {}}, {"reviewed": 1, "approved": 0, "overdue": 1}),
    ],
)
def test_report_of_orders_counts_reviews(tmp_path: Path, review: dict[str, Any], figures: dict[str, int]) -> None:
    day = day_of(tmp_path, GOOD)
    visit = Visit(basket=day.baskets[0], result=sale({**STEPS, **review}))

    report = OrderReport(day=day, visits=[visit], seconds=1, reported=1, repeated=0)

    facts = report.as_dict()
    assert facts["flow"] == "graph"
    assert facts["review"] == figures
    assert (facts["invoices"], facts["webhooks"]) == (1, {"delivered": 1, "repeated": 0})
    assert f"{figures['approved']} approved, {figures['overdue']} overdue" in report.text()


def test_staff_in_trouble_gives_one_and_is_named(tmp_path: Path) -> None:
    report = OrderReport(day=day_of(tmp_path, GOOD), staff_problems=["carrier: RuntimeError: 403"])

    assert report.code == 1
    assert "TROUBLE: carrier: RuntimeError: 403" in report.text()


def test_of_several_reports_a_difference_outranks_malformed_lines() -> None:
    assert [worst(codes) for codes in ([0, 0], [0, 2], [2, 1], [1, 0], [])] == [0, 2, 1, 1, 0]


# --- the buyer --------------------------------------------------------------------------------------------------------


def test_every_basket_gets_a_number_of_its_own(tmp_path: Path) -> None:
    ids = ["33656471770", "b1", "B1", "x4231", "B-1", "b_1", "x1"]
    baskets = [day_of(tmp_path, GOOD.replace("b1", basket_id)).baskets[0] for basket_id in ids]

    numbers = [order_number(basket) for basket in baskets]

    assert numbers[:3] == ["33656471770", "b1", "x4231"]
    assert len({*numbers}) == len(ids)
    assert all(ORDER.id_for(number) for number in numbers)


class Desk:
    """A shop that loses the answer to the first order: ``heard`` says whether the order itself arrived."""

    def __init__(self, *, heard: bool, created_at: str = "9999-01-01T00:00:00Z") -> None:
        self.orders = 0
        self._heard = heard
        self._run = {"run_id": "run-1", "created_at": created_at}

    def start_by_value(self, value: str, **_: Any) -> Answer:
        self.orders += 1
        if self.orders == 1:
            raise LostAnswer("no answer")
        return Answer(status=201, body={"run_id": "run-2"})

    def describe(self, run: str) -> Answer:
        assert run == "order::b1"
        return Answer(status=200, body=self._run) if self._heard else Answer(status=404, body={})


@pytest.mark.parametrize(
    ("desk", "orders", "run"),
    [
        (Desk(heard=True), 1, "run-1"),
        (Desk(heard=False), 2, "run-2"),
        (Desk(heard=True, created_at="2017-06-14T00:00:00Z"), 2, "run-2"),
    ],
    ids=["heard", "not heard", "an order of an earlier play"],
)
def test_a_lost_answer_is_not_a_second_order(tmp_path: Path, desk: Any, orders: int, run: str) -> None:
    day = day_of(tmp_path, GOOD)
    visit = Visit(basket=day.baskets[0])

    Buyer(desk, clock=Clock(begins=day.begins, speed=1), patience=5).fill(visit)

    assert (desk.orders, visit.run_id, visit.resent) == (orders, run, 1)


def test_an_order_that_was_cancelled_is_a_complaint(tmp_path: Path) -> None:
    class Cancelled:
        def result(self, run: str) -> Answer:
            ended = {"status": "completed", "result": {"cancel_order": {"reason": "nobody looked"}}}
            return Answer(status=200, body=ended)

    day = day_of(tmp_path, GOOD)
    buyer = Buyer(Cancelled(), clock=Clock(begins=day.begins, speed=1), patience=5)  # type: ignore[arg-type]

    with pytest.raises(Stuck, match="nobody looked"):
        buyer.finish(Visit(basket=day.baskets[0]))


# --- the play, with real processes ------------------------------------------------------------------------------------


def play(folder: Path, file: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run replay_day on a database of its own; it starts and ends its own processes."""
    return command(folder, "replay_day", str(file), *options)


def check_on_cluster(folder: Path, file: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Run the demo with carts and reports on a server of Temporal, which it starts and ends."""
    return command(
        folder, "demo", "--check", "--backend", "temporal", "--day", str(file), "--speed", "700", *options, timeout=400
    )


def command(folder: Path, *arguments: str, timeout: int = 300) -> tuple[int, dict[str, Any], str]:
    """Run a command of the shop on a database of its own, and return its status, its report and its output."""
    out = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments, "--json", str(out), "--confirm-within", "2"],
        cwd=ROOT,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("TX_TEST")},
            "DJANGO_SETTINGS_MODULE": "example_project.settings",
            "DATABASE_URL": f"sqlite://{folder / 'shop.sqlite3'}",
            "SHOP_VAR": str(folder / "var"),
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return done.returncode, json.loads(out.read_text()) if out.exists() else {}, done.stdout + done.stderr


def first_baskets(folder: Path, number: int) -> Path:
    """Copy the day's first baskets."""
    header, *lines = REAL_DAY.read_text().splitlines()
    wanted = list(dict.fromkeys(line.partition(",")[0] for line in lines))[:number]
    file = folder / "basket_lines.csv"
    file.write_text("\n".join([header, *(line for line in lines if line.partition(",")[0] in wanted)]) + "\n")
    (folder / "products.csv").write_bytes(REAL_DAY.with_name("products.csv").read_bytes())
    return file


@pytest.mark.slow
def test_both_flows_sell_the_same_and_a_second_play_on_the_same_database_too(tmp_path: Path) -> None:
    file = first_baskets(tmp_path, 25)
    large = [basket for basket in read_day(file).baskets if basket.cents > 4000]
    assert large

    for _ in range(2):
        code, report, said = play(tmp_path, file, "--flow", "both", "--speed", "2000")

        assert code == report["code"] == 0, said
        cart, graph = report["flows"]["cart"], report["flows"]["graph"]
        for name in ("completed", "charged", "lines", "units", "sales"):
            assert cart[name] == graph[name], name
        assert cart["completed"] == cart["baskets"] == 25
        assert cart["confirmed"] == {"customer": 23, "timeout": 2}
        assert cart["provider"]["doubles"] == 0
        assert all(check["ok"] for flow in (cart, graph) for check in flow["checks"])
        assert graph["review"] == {
            "reviewed": len(large),
            "approved": len(large),
            "overdue": 0,
        }
        assert graph["webhooks"] == {"delivered": 25, "repeated": 2}
        assert graph["invoices"] == 25
        assert cart["provider"]["charges"] == graph["provider"]["charges"] == cart["charged"]


@pytest.mark.slow
def test_malformed_line_gives_two_and_names_file_and_line(tmp_path: Path) -> None:
    file = first_baskets(tmp_path, 5)
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, lines[1].replace(",1,", ",many,", 1)]) + "\n")

    code, report, said = play(tmp_path, file, "--speed", "2000")

    assert code == 2, said
    assert f"{file}:{len(lines) + 1}: invalid quantity 'many'" in said
    assert report["completed"] == report["baskets"] == 4
    assert report["skipped"] == [lines[1].partition(",")[0]]


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["cart", "graph"])
def test_killed_workers_lose_nothing(tmp_path: Path, flow: str) -> None:
    code, report, said = play(tmp_path, first_baskets(tmp_path, 40), "--flow", flow, "--chaos", "1", "--speed", "700")

    assert code == 0, said
    (kill,) = report["kills"]
    assert all(held["again"] > held["attempt"] for held in kill["held"]), said


@pytest.mark.slow
def test_carts_and_reports_on_a_cluster_match_orders_on_the_tables(tmp_path: Path) -> None:
    code, report, said = check_on_cluster(tmp_path, first_baskets(tmp_path, 25))

    assert code == 0, said
    cart, graph = report["flows"]["cart"], report["flows"]["graph"]
    assert (cart["backend"], graph["backend"]) == ("temporal", "tables")
    for name in ("completed", "charged", "lines", "units", "sales"):
        assert cart[name] == graph[name], name
    assert cart["completed"] == cart["baskets"] == 25
    assert cart["confirmed"] == {"customer": 23, "timeout": 2}
    assert [figure["name"] for figure in cart["not_compared"]] == [*COUNTERS]
    assert [figure["name"] for figure in graph["not_compared"]] == []
    for flow in (cart, graph):
        assert flow["provider"]["doubles"] == 0
        assert flow["schedules"]["reports"] == flow["schedules"]["started"] > 0
    with closing(sqlite3.connect(tmp_path / "shop.sqlite3")) as database:
        rows = database.execute("select workflow, mirrored_at is not null from temporalex_instance group by 1, 2")
        assert {*rows} == {("NightlyReport", 1), ("OrderProcess", 0), ("ShoppingCart", 1)}


@pytest.mark.slow
def test_killed_workers_lose_nothing_of_carts_on_a_cluster(tmp_path: Path) -> None:
    code, report, said = check_on_cluster(tmp_path, first_baskets(tmp_path, 40), "--flow", "cart", "--chaos", "1")

    assert code == 0, said
    (kill,) = report["kills"]
    assert kill["held"], said
    assert all(held["again"] > held["attempt"] for held in kill["held"]), said


def test_a_backend_that_does_not_exist_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", "SHOP_VAR": str(tmp_path / "var")}

    done = subprocess.run(
        [sys.executable, "manage.py", "demo", "--check"],
        cwd=ROOT,
        env={**env, "DEMO_BACKEND": "elsewhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "DEMO_BACKEND must be temporal or tables, not elsewhere" in done.stderr
    assert not [*(tmp_path / "var").glob("check-*")]


def test_missing_file_is_said_and_nothing_is_started(tmp_path: Path) -> None:
    code, report, said = play(tmp_path, tmp_path / "nowhere.csv")

    assert code == 1
    assert report == {}
    assert "nowhere.csv" in said
