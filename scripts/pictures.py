"""Take the pictures of the documentation from the running example shop: ``python scripts/pictures.py``.

The shop is that of ``manage.py demo --no-play``, with a SQLite database in a temporary folder. The script buys, places
orders, ends the bank and makes a run fail. Meanwhile it saves in ``docs/images`` what Chromium shows. Then it starts
the shop again, with its carts and invoices on a Temporal cluster, and takes the pictures of those. It needs Linux and
Chromium, and takes a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from example_project.invoices.workflows import REMINDERS  # noqa: E402 - the path is set by now
from example_project.replay.day import read_day  # noqa: E402 - as above
from example_project.replay.processes import descendants  # noqa: E402 - as above
from example_project.shop.orders import REVIEW_ABOVE  # noqa: E402 - as above

IMAGES = ROOT / "docs" / "images"
RUNS = "/admin/temporalex_django/instance/"
CONSOLE = f"{RUNS}console/"
TASKS = f"{CONSOLE}desk/"
ORDERS_LEDGER = "orders-ledger.sqlite3"
DEADLINE = 60.0
#: Seconds that payments fail before the script takes a picture of them.
FAILING = 4.0


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError("the shop did not reach the state that a picture needs")
        time.sleep(0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A running demo."""

    url: str
    password: str
    process: subprocess.Popen[bytes]
    folder: Path
    env: dict[str, str]

    def end_bank(self) -> None:
        """End the bank of the orders, and put the demo to sleep: it would end with the bank."""
        self.process.send_signal(signal.SIGSTOP)
        for child in descendants(self.process.pid):
            if ORDERS_LEDGER.encode() in Path(f"/proc/{child.pid}/cmdline").read_bytes():
                os.kill(child.pid, signal.SIGTERM)


@contextmanager
def running_demo(folder: Path, *arguments: str) -> Iterator[Demo]:
    """Start the demo with these arguments; in the end, stop it and everything that it started."""
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    env |= {"DJANGO_SETTINGS_MODULE": "example_project.settings", "SHOP_VAR": str(folder), "DEMO_DB": "sqlite"}
    output = folder / "demo.log"
    with output.open("wb") as log:
        command = [sys.executable, "-u", "manage.py", "demo", "--no-play", *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: "keeps running" in output.read_text() or process.poll() is not None)
        said = output.read_text()
        found = re.search(r"shop +(http\S+?)/\n.*login +demo / (\S+)", said, re.DOTALL)
        if found is None:
            sys.exit(said)
        yield Demo(url=found[1], password=found[2], process=process, folder=folder, env=env)
    finally:
        process.terminate()
        process.send_signal(signal.SIGCONT)
        process.wait(DEADLINE)


class Photographer:
    """A signed-in superuser at a screen, who may also use the REST API."""

    def __init__(self, demo: Demo, page: Page) -> None:
        self.demo, self.page = demo, page
        page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        self.open("/login/?next=/cart/")
        page.fill("input[name=username]", "demo")
        page.fill("input[name=password]", demo.password)
        page.press("input[name=password]", "Enter")
        page.wait_for_url("**/cart/")

    def take(self, name: str, *, down_to: str = "") -> None:
        """Save what is on the screen, or the page down to the end of an element."""
        size = self.page.viewport_size
        assert size is not None
        if down_to:
            bottom = self.page.locator(down_to).first.evaluate("e => e.getBoundingClientRect().bottom + scrollY")
            self.page.set_viewport_size({"width": size["width"], "height": int(bottom) + 16})
            self.page.evaluate("scrollTo(0, 0)")
        self.page.screenshot(path=IMAGES / f"{name}.png")
        self.page.set_viewport_size(size)

    def open(self, address: str) -> None:
        self.page.goto(self.demo.url + address)

    def open_run(self, run: str) -> None:
        self.open(f"{CONSOLE}runs/{self.get(f'instances/{run}/')['run_id']}/")

    def get(self, address: str) -> Any:
        return self.page.request.get(f"{self.demo.url}/api/{address}").json()

    def post(self, address: str, body: dict[str, Any]) -> None:
        cookies = {cookie.get("name"): str(cookie.get("value")) for cookie in self.page.context.cookies()}
        headers = {"X-CSRFToken": cookies["csrftoken"], "Referer": self.demo.url}
        answer = self.page.request.post(f"{self.demo.url}/api/{address}", data=body, headers=headers)
        if not answer.ok:
            raise RuntimeError(f"{address}: {answer.status} {answer.text()}")

    def wait_until(self, run: str, what: str) -> None:
        """Wait until the summary of a run names this state, or the run waits for this."""
        wait_for(
            lambda: what in (row := self.get(f"instances/{run}/"))["waiting_for"] or what == row["summary"]["state"]
        )


def take_pictures(wide: Photographer, narrow: Photographer) -> None:
    """Take one picture after the other, and bring the shop into the state that each of them needs."""
    purchase(wide)
    orders = baskets()
    for number in (39, 40, 41, 42):
        place_order(wide, number, orders[number])
    ask_for_write_off(wide)
    wide.wait_until("order::42", "step review: approved or rejected or overdue")
    draw(wide)
    wide.open(TASKS)
    wide.take("console-tasks-wide", down_to=".tx-tasks")
    decide(narrow)
    wide.post("instances/order::40/resume/", {"event": "approved", "step": "review", "data": {"comment": "a regular"}})
    wide.wait_until("order::40", "step carrier: delivered or timeout")
    wide.post("instances/order::40/resume/", {"event": "delivered"})
    wide.wait_until("order::40", "completed")
    block(narrow)
    wide.demo.end_bank()
    for number in (43, 44, 45):
        place_order(wide, number, orders[number])
    wide.wait_until("order::45", "failing")
    time.sleep(FAILING)
    wide.open_run("order::43")
    wide.take("admin-run-wide", down_to=".tx-happened")
    wide.open(f"{CONSOLE}workers/")
    wide.take("console-workers-wide", down_to=".tx-workers")
    wide.open(f"{CONSOLE}schedules/")
    wide.take("console-schedules-wide", down_to=".tx-schedules")
    for shop, width in ((wide, "wide"), (narrow, "narrow")):
        shop.open(CONSOLE)
        shop.take(f"console-overview-{width}", down_to=".tx-problems")
        shop.open(f"{CONSOLE}runs/")
        shop.take(f"console-runs-{width}", down_to=".tx-runs" if width == "wide" else "")
    pause(wide)
    announce(wide)


def take_cluster_pictures(shop: Photographer) -> None:
    """Take the pictures of runs on a Temporal cluster, beside an order on the tables."""
    place_order(shop, 42, baskets()[42])
    shop.wait_until("order::42", "step review: approved or rejected or overdue")
    ask_for_write_off(shop)
    fill_cart(shop, "till-8")
    shop.post("instances/till-8/pause/", {"reason": "the till is being repaired"})
    shop.open(f"{CONSOLE}runs/")
    shop.take("cluster-list-wide", down_to=".tx-runs")
    shop.open_run("till-8")
    shop.take("cluster-paused-wide", down_to=".tx-parts")
    claim(shop)
    shop.page.get_by_role("button", name="Decide", exact=True).click()
    shop.wait_until("invoice::2026017", "completed")
    shop.open_run("invoice::2026017")
    shop.take("cluster-decided-wide", down_to=".tx-happened")
    shop.post("instances/till-8/unpause/", {})
    shop.post("instances/till-8/reset/", {"to": 1, "reason": "to start again"})
    shop.open_run("till-8")
    shop.take("cluster-reset-wide", down_to=".tx-happened")


def purchase(shop: Photographer) -> None:
    """Buy three products on the pages of the shop."""
    shop.open("/?q=milk")
    shop.take("shop")
    for index in range(3):
        shop.page.locator("li.card button").nth(index).click()
        shop.page.wait_for_load_state()
    shop.open("/cart/")
    shop.page.click("text=Check out")
    shop.page.click("text=Confirm the order")
    shop.page.wait_for_selector("[data-final]")


def baskets() -> dict[int, list[dict[str, Any]]]:
    """Return the lines of orders from a real day: the first is small, and clerks review the others."""
    day = read_day(ROOT / "example_project" / "data" / "2017-06-14" / "basket_lines.csv").baskets
    small = next(one for one in day if one.cents < REVIEW_ABOVE)
    large = (one for one in day if one.cents > REVIEW_ABOVE)
    return {39 + n: [asdict(line) for line in one.lines] for n, one in enumerate((small, *islice(large, 6)))}


def place_order(shop: Photographer, number: int, lines: list[dict[str, Any]]) -> None:
    order = {"customer": "ann", "lines": lines}
    shop.post("instances/", {"workflow": "OrderProcess", "value": str(number), "args": order})


def ask_for_write_off(shop: Photographer) -> None:
    """Issue an invoice, and let its deadlines pass until somebody has to decide."""
    run = "invoice::2026017"
    shop.open("/invoices/")
    for name, value in {"number": "2026017", "customer": "ann@example.com", "total": "310.00"}.items():
        shop.page.fill(f"main [name={name}]", value)
    shop.page.click("main button")
    fired = set[int]()

    def fire() -> bool:
        for row in shop.get(f"instances/{run}/timeline/")["results"]:
            if row["kind"] == "timer" and row["state"] == "open" and row["seq"] not in fired:
                shop.post(f"instances/{run}/timers/{row['seq']}/skip_timer/", {"reason": "to show the decision"})
                fired.add(row["seq"])
                return True
        return False

    for _ in range(1 + REMINDERS):
        wait_for(fire)
    shop.wait_until(run, "decision")


def draw(shop: Photographer) -> None:
    """Take the pictures of order 42 as a graph: that of the command, and that of the console."""
    svg = shop.demo.folder / "graph.svg"
    command = ("temporalex", "graph", "OrderProcess", "--format", "svg", "--id", "42", "--output", str(svg))
    subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=shop.demo.env, check=True)
    paper = shop.page.context.new_page()  # without the shop's content security policy
    paper.set_content(svg.read_text(encoding="utf-8"))
    paper.locator("svg").first.screenshot(path=IMAGES / "graph.png")
    paper.close()
    shop.open_run("order::42")
    shop.page.get_by_role("link", name="Graph", exact=True).click()
    shop.page.locator(".tx-drawing").evaluate("e => { e.style.border = 'none' }")
    shop.page.locator(".tx-graph").screenshot(path=IMAGES / "admin-graph-wide.png")


def claim(shop: Photographer) -> None:
    """Claim the write-off, and fill the form in."""
    shop.open(TASKS)
    shop.page.click("text=Write off 310.00 EUR")
    shop.page.get_by_role("button", name="Claim").click()
    shop.page.get_by_role("radio", name="Approve").check()
    shop.page.get_by_label("Comment").fill("two reminders, no answer")


def decide(shop: Photographer) -> None:
    """Take the picture of the write-off before it is decided."""
    claim(shop)
    shop.take("task-narrow", down_to=".tx-page")


def block(shop: Photographer) -> None:
    """Start a cart with a number for which the workflow is not prepared: an error in its code, which blocks the run."""
    fill_cart(shop, "till-7", confirm_within=1e14)
    shop.post("instances/till-7/signals/checkout/", {})
    shop.wait_until("till-7", "blocked")
    shop.open_run("till-7")
    shop.take("admin-blocked-narrow", down_to=".tx-parts")


def fill_cart(shop: Photographer, cart: str, **options: Any) -> None:
    """Start a cart with this id, and put a product into it."""
    args = {"customer": "ann", **options}
    shop.post("instances/", {"workflow": "ShoppingCart", "id": cart, "args": args})
    line = {"product_id": "1000236", "quantity": 3, "amount": "5.97"}
    shop.post(f"instances/{cart}/updates/add_item/", {"args": line})


def pause(shop: Photographer) -> None:
    """Pause the orders that cannot be paid, and choose one that has closed as well."""
    for number in (40, 43, 44, 45):
        shop.page.locator(f".tx-runs tr:has-text('order::{number}') input[name=run]").check()
    shop.page.locator("select[name=action]").select_option(label="Pause…")
    shop.page.get_by_role("button", name="Go", exact=True).click()
    shop.page.get_by_label("Reason").fill("the bank is closed until Monday")
    shop.take("console-bulk-confirm-wide", down_to=".tx-console")
    shop.page.get_by_role("button", name="Pause").click()
    wait_for(lambda: shop.page.reload() is not None and "4 of 4 finished" in shop.page.inner_text("#tx-main"))
    shop.take("console-bulk-wide", down_to=".tx-console")


def announce(shop: Photographer) -> None:
    """Take the picture of tasks that failed with one cause: mails to customers who have closed their accounts."""
    customers = ("demo", *(f"customer-{number}" for number in range(1, 9)))
    program = (
        "from example_project.shop.tasks import announce_price\n"
        f"for customer in {customers}: announce_price.enqueue('1000236', customer)"
    )
    command = (sys.executable, "manage.py", "shell", "-v", "0", "-c", program)
    subprocess.run(command, cwd=ROOT, env=shop.demo.env, check=True)
    wait_for(lambda: len(shop.get("tasks/?status=FAILED")["results"]) == len(customers) - 1)
    shop.open("/admin/temporalex_django/endedtask/")
    shop.take("admin-background-tasks-wide")


def main() -> None:
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"]) as browser,
    ):

        def wide_page() -> Page:
            return browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light").new_page()

        with tempfile.TemporaryDirectory(prefix="pictures-") as folder, running_demo(Path(folder)) as demo:
            narrow = browser.new_context(viewport={"width": 390, "height": 900}, color_scheme="dark")
            take_pictures(Photographer(demo, wide_page()), Photographer(demo, narrow.new_page()))
        with (
            tempfile.TemporaryDirectory(prefix="pictures-") as folder,
            running_demo(Path(folder), "--backend", "temporal") as demo,
        ):
            take_cluster_pictures(Photographer(demo, wide_page()))


if __name__ == "__main__":
    main()
