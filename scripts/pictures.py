"""Take the pictures of the documentation of the running example shop: ``python scripts/pictures.py``.

The shop is that of ``manage.py demo --no-play``, with a SQLite database in a temporary folder. The script buys, places
orders, ends the bank and makes a run fail. Meanwhile it saves in ``docs/images`` what Chromium shows. It needs Linux,
Chromium, and about a minute.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from example_project.replay.day import read_day  # noqa: E402 - the path is set by now
from example_project.replay.processes import descendants  # noqa: E402 - as above
from example_project.shop.values import Line  # noqa: E402 - as above

IMAGES = ROOT / "docs" / "images"
DAY = ROOT / "example_project" / "data" / "2017-06-14" / "basket_lines.csv"
RUNS = "/admin/temporalex_django/instance/"
TASKS = "/admin/temporalex_django/humantask/"
ORDERS_LEDGER = "orders-ledger.sqlite3"
CUSTOMERS = ("ann", "ben", "carla", "dora", "emil")
#: A person reviews orders that cost more, in cents.
REVIEW_ABOVE = 40_00
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
    bank_port: str
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
    def other_bank(self) -> Iterator[None]:
        """Open the bank again, at the same address and with the same ledger."""
        options = ("--port", self.bank_port, "--ledger", str(self.folder / ORDERS_LEDGER))
        command = [sys.executable, "-m", "example_project.provider", *options]
        bank = subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=subprocess.DEVNULL)
        try:
            yield
        finally:
            bank.terminate()
            bank.wait()


@contextmanager
def running_demo(folder: Path) -> Iterator[Demo]:
    """Start the demo; in the end, stop it and everything that it started."""
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    env |= {"DJANGO_SETTINGS_MODULE": "example_project.settings", "SHOP_VAR": str(folder), "DEMO_DB": "sqlite"}
    output = folder / "demo.log"
    with output.open("wb") as log:
        command = [sys.executable, "-u", "manage.py", "demo", "--no-play"]
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    try:
        wait_for(lambda: "keeps running" in output.read_text() or process.poll() is not None)
        said = output.read_text()
        found = re.search(r"shop +(http\S+?)/\n.*:(\d+)/report\n.*login +demo / (\S+)", said, re.DOTALL)
        if found is None:
            sys.exit(said)
        url, port, password = found.groups()
        yield Demo(url=url, bank_port=port, password=password, process=process, folder=folder, env=env)
    finally:
        process.terminate()
        process.send_signal(signal.SIGCONT)
        process.wait(DEADLINE)


class Photographer:
    """A signed-in superuser with a wide and a narrow screen, and a way into the REST API."""

    def __init__(self, demo: Demo, wide: Page, narrow: Page) -> None:
        self.demo, self.wide, self.narrow = demo, wide, narrow
        for page in (wide, narrow):
            page.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
            page.goto(f"{demo.url}/login/?next=/cart/")
            page.fill("input[name=username]", "demo")
            page.fill("input[name=password]", demo.password)
            page.press("input[name=password]", "Enter")
            page.wait_for_url("**/cart/")

    def take(self, name: str, *, page: Page | None = None) -> None:
        """Save what is on the screen."""
        (page or self.wide).screenshot(path=IMAGES / f"{name}.png", animations="disabled")

    def open(self, address: str, *, page: Page | None = None) -> None:
        (page or self.wide).goto(self.demo.url + address)

    def open_run(self, run: str, *, page: Page | None = None) -> None:
        self.open(self.get(f"instances/{run}/")["run_id"].join((RUNS, "/")), page=page)

    def get(self, address: str) -> Any:
        answer = self.wide.request.get(f"{self.demo.url}/api/{address}")
        return answer.json()

    def post(self, address: str, body: dict[str, Any]) -> None:
        cookies = {str(cookie.get("name")): str(cookie.get("value")) for cookie in self.wide.context.cookies()}
        headers = {"X-CSRFToken": cookies["csrftoken"], "Referer": self.demo.url}
        answer = self.wide.request.post(f"{self.demo.url}/api/{address}", data=body, headers=headers)
        if not answer.ok:
            raise RuntimeError(f"{address}: {answer.status} {answer.text()}")

    def place_order(self, number: int, lines: Sequence[Line]) -> None:
        order = {"customer": CUSTOMERS[number % len(CUSTOMERS)], "lines": [asdict(line) for line in lines]}
        self.post("instances/", {"workflow": "OrderProcess", "value": str(number), "args": order})

    def wait_until(self, run: str, *states: str) -> None:
        """Wait until the summary of a run names one of these states."""
        wait_for(lambda: self.get(f"instances/{run}/")["summary"]["state"] in states)


def take_pictures(shop: Photographer) -> None:
    """Take one picture after the other, and bring the shop into the state that each of them needs."""
    day = read_day(DAY)
    small = next(one.lines for one in day.baskets if len(one.lines) > 3 and one.cents < REVIEW_ABOVE)
    large = [one.lines for one in day.baskets if one.cents > REVIEW_ABOVE]
    shop.post("instances/", {"workflow": "Onboarding", "id": "onboarding-ann", "args": {"user_id": "ann"}})
    purchase(shop)
    shop.place_order(39, small)
    for number in (40, 41, 42):
        shop.place_order(number, large[number - 40])
    ask_for_write_off(shop)
    shop.wait_until("order::42", "decision")
    draw(shop.demo, shop.wide)
    shop.open_run("order::42")
    shop.wide.locator("section[aria-labelledby=tx-graph]").screenshot(path=IMAGES / "admin-graph-wide.png")
    shop.open(TASKS)
    shop.take("admin-inbox-wide")
    decide(shop)
    block(shop)
    shop.demo.end_bank()
    for number in (43, 44, 45):
        shop.place_order(number, large[number - 40])
    shop.wait_until("order::45", "failing")
    time.sleep(FAILING)
    shop.open_run("order::43")
    shop.take("admin-run-wide")
    shop.open(RUNS)
    shop.take("admin-list-wide")
    retry(shop)


def purchase(shop: Photographer) -> None:
    """Buy three products on the pages of the shop."""
    page = shop.wide
    shop.open("/?q=milk")
    shop.take("shop")
    for index in range(3):
        page.locator("li.card button").nth(index).click()
        page.wait_for_load_state()
    shop.open("/cart/")
    page.click("text=Check out")
    page.click("text=Confirm the order")
    page.wait_for_selector("[data-final]")
    shop.open_run(page.url.rstrip("/").rsplit("/", 1)[1])
    shop.take("admin")


def ask_for_write_off(shop: Photographer) -> None:
    """Issue an invoice, and let its deadlines pass until somebody has to decide."""
    page, run = shop.wide, "invoice::2026017"
    shop.open("/invoices/")
    for name, value in {"number": "2026017", "customer": "ann@example.com", "total": "310.00"}.items():
        page.fill(f"main [name={name}]", value)
    page.click("main button")

    def skip() -> bool:
        for row in shop.get(f"instances/{run}/timeline/")["results"]:
            if row["kind"] == "timer" and row["state"] == "open":
                shop.post(f"instances/{run}/timers/{row['seq']}/skip_timer/", {"reason": "the customer has moved"})
        return bool(shop.get(f"instances/{run}/")["summary"]["state"] == "decision")

    wait_for(skip)


def draw(demo: Demo, page: Page) -> None:
    """Take the picture that the command draws of order 42."""
    svg = demo.folder / "graph.svg"
    command = ("temporalex", "graph", "OrderProcess", "--format", "svg", "--id", "42", "--output", str(svg))
    subprocess.run([sys.executable, "manage.py", *command], cwd=ROOT, env=demo.env, check=True)
    paper = page.context.new_page()  # without the shop's content security policy
    paper.set_content(svg.read_text(encoding="utf-8"))
    paper.locator("svg").first.screenshot(path=IMAGES / "graph.png")
    paper.close()


def decide(shop: Photographer) -> None:
    """Claim the write-off on a telephone, and fill the form in."""
    page = shop.narrow
    shop.open(TASKS, page=page)
    page.click("text=Write off 310.00 EUR")
    page.get_by_role("button", name="Claim").click()
    page.get_by_role("radio", name="Approve").check()
    page.get_by_label("Comment").fill("three reminders, no answer")
    shop.take("admin-task-narrow", page=page)


def block(shop: Photographer) -> None:
    """Start a cart with a number that the workflow does not expect: an error in the code, which blocks the run."""
    cart = {"customer": "ben", "confirm_within": 1e14}
    shop.post("instances/", {"workflow": "ShoppingCart", "id": "till-7", "args": cart})
    line = {"product_id": "1000236", "quantity": 3, "amount": "5.97"}
    shop.post("instances/till-7/updates/add_item/", {"args": line})
    shop.post("instances/till-7/signals/checkout/", {})
    shop.wait_until("till-7", "blocked")
    shop.open_run("till-7", page=shop.narrow)
    shop.take("admin-blocked-narrow", page=shop.narrow)


def retry(shop: Photographer) -> None:
    """Retry the failing activities of many runs, after the bank has opened again."""
    page = shop.wide
    for number in (42, 43, 44, 45):
        page.locator(f"#result_list tr:has-text('order::{number}') input.action-select").check()
    page.locator("select[name=action]").first.select_option(label="Retry now…")
    page.get_by_role("button", name=re.compile("^(Run|Go)$")).first.click()
    page.get_by_label("Reason").fill("the bank is open again")
    shop.take("admin-bulk-confirm-wide")
    with shop.demo.other_bank():
        page.get_by_role("button", name="Retry now").click()

        def finished() -> bool:
            page.reload()
            return "4 of 4 finished" in page.inner_text("#content")

        wait_for(finished)
        shop.take("admin-bulk-wide")


def main() -> None:
    chromium = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pictures-")))
        demo = stack.enter_context(running_demo(folder))
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        stack.callback(browser.close)
        wide = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light").new_page()
        narrow = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme="dark")
        take_pictures(Photographer(demo, wide, narrow))


if __name__ == "__main__":
    main()
