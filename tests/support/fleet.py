"""A fleet of 300 runs in which many things are broken at once, as somebody on call would find it.

``start_fleet`` starts the runs, and ``break_fleet`` breaks what they need. Each fault is a name in ``AWAY``.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.utils import timezone

from temporalex_django import NoReply, Ok, Reply, RetryPolicy, Stop, Workflow, activity, api
from temporalex_django.models import Chain, Instance, ScheduleSlot
from temporalex_django.operations.schedules.definition import parse_definition
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.testing import drain

#: What is broken now: "bank", "mail", or "release" for a release whose code differs from what runs have done.
AWAY: set[str] = set()
PATIENT = RetryPolicy(initial_interval=90, max_attempts=50)


@activity(name="fleet.charge", retry=PATIENT)
def charge(customer: str) -> str:
    """Charge the card."""
    if "bank" in AWAY:
        raise ConnectionError("psp.example: connection refused")
    return f"charge of {customer}"


@activity(name="fleet.send_mail", retry=PATIENT)
def send_mail(to: str) -> bool:
    """Send the mail."""
    if "mail" in AWAY:
        raise OSError(f"smtp.example: greylisted {to}")
    return True


@activity(name="fleet.look_up_vat", retry=RetryPolicy(initial_interval=1, max_attempts=1))
def look_up_vat(customer: dict[str, str]) -> str:
    """Look up the VAT number."""
    return customer["vat"]


@activity(name="fleet.score")
def score(claim: str) -> int:
    """Score the claim."""
    return len(claim)


class Checkout(Workflow):
    """Charges a card and sends a mail."""

    name = "fleet.Checkout"

    async def run(self, customer: str) -> Any:
        paid = await charge(customer)
        await send_mail(customer)
        return Ok(paid)


class Mailing(Workflow):
    """Sends a mail."""

    name = "fleet.Mailing"

    async def run(self, to: str) -> Any:
        return Ok(await send_mail(to))


class Onboard(Workflow):
    """Takes on a business customer."""

    name = "fleet.Onboard"

    async def run(self, customer: dict[str, str]) -> Any:
        return Ok(await look_up_vat(customer))


class Claim(Workflow):
    """An insurance claim, whose code differs after a release."""

    name = "fleet.Claim"

    async def run(self, claim: str) -> Any:
        if "release" in AWAY:
            await api.sleep(5)
        await score(claim)
        await api.wait_for_signal("papers")
        return Ok("paid")


class Tariff(Workflow):
    """Computes a tariff; a fault in its own code blocks it."""

    name = "fleet.Tariff"
    unexpected_error = "block"

    async def run(self, country: str) -> Any:
        return Ok({"de": 19}[country])


class Legacy(Workflow):
    """Waits for a signal; ``break_fleet`` takes its class away."""

    name = "fleet.Legacy"

    async def run(self, args: None) -> Any:
        return Ok(await api.wait_for_signal("go"))


class Ledger(Workflow):
    """An account that takes signals; some of them fail."""

    name = "fleet.Ledger"

    async def run(self, balance: int) -> Any:
        def book(amount: Any, state: Any) -> Any:
            return NoReply(state + int(amount))

        signals = {"book": book, "close": lambda _, state: Stop(state)}
        return Ok(await api.phase(balance, signal=signals, update={"read": lambda _, state: Reply(state, state)}))


class Refund(Workflow):
    """A refund that somebody approves."""

    name = "fleet.Refund"

    async def run(self, groups: list[str]) -> Any:
        decision = await api.approval("Refund 20 EUR?", groups=tuple(groups))
        return Ok(decision.outcome)


class Region(Workflow):
    """A family of children."""

    name = "fleet.Region"

    async def run(self, shape: list[int]) -> Any:
        depth, fan = shape
        if depth:
            ids = [f"{api.info().id}.{number}" for number in range(fan)]
            await api.parallel([api.child(Region, [depth - 1, fan], id=name) for name in ids])
        else:
            await api.wait_for_signal("closed")
        return Ok(depth)


class Rates(Workflow):
    """Reads exchange rates; a schedule starts it, and its first run blocks."""

    name = "fleet.Rates"
    unexpected_error = "block"

    async def run(self, args: None) -> Any:
        raise KeyError("CHF")


def start_fleet() -> int:
    """Start the runs of the fleet while everything works, and return their number."""
    for group in ("clerks", "heads"):
        Group.objects.get_or_create(name=group)
    ann, _is_new = get_user_model().objects.get_or_create(username="ann", defaults={"is_staff": True})
    ann.groups.set(Group.objects.filter(name="clerks"))
    draw = random.Random(7)
    for number in range(14):
        Claim.start(f"c{number}", id=f"claim-{number}")
    for number in range(6):
        Legacy.start(None, id=f"legacy-{number}")
    for number in range(8):
        Ledger.start(100, id=f"ledger-{number}")
    for number in range(12):
        Refund.start(["clerks"], id=f"refund-{number}")
    Refund.start(["ghosts"], id="refund-ghost")
    Region.start([4, 2], id="europe")
    drain()
    AWAY.update(("bank", "mail", "release"))
    for number in range(143):
        Checkout.start(f"c{draw.randrange(40)}", id=f"checkout-{number}")
    for number in range(5):
        Mailing.start(f"m{number}@x.example", id=f"mailing-{number}")
    for number in range(12):
        Onboard.start({"name": f"firm {number}"}, id=f"onboard-{number}")
    for number in range(4):
        Tariff.start("at", id=f"tariff-{number}")
    drain()
    return Instance.objects.count()


def break_fleet() -> None:
    """Break what the runs need, and let them meet it."""
    Instance.objects.filter(workflow=Legacy.name).update(workflow="fleet.Dropped")
    for number in range(8):
        Ledger.handle(f"ledger-{number}").signal("book", "five" if number in (2, 5) else 5)
    for number in range(14):
        Claim.handle(f"claim-{number}").signal("papers")
    Chain.objects.filter(runs__workflow="fleet.Dropped").update(due_at=timezone.now())
    _stall_a_schedule()
    drain()


def _stall_a_schedule() -> None:
    definition = {"name": "rates", "workflow": Rates.name, "cron": "* * * * *", "tz": "UTC"}
    schedule = SaveSchedule(parse_definition(definition), create=True).execute()
    run, now = Instance.objects.get(pk=Rates.start(None, id="rates-1").run_id), timezone.now()
    ScheduleSlot.objects.create(
        schedule=schedule,
        at=now - timedelta(minutes=9),
        cause="time",
        outcome="started",
        decided_at=now,
        running=True,
        workflow_id=run.workflow_id,
        run=run,
        chain=run.chain,
    )
    for minutes in range(1, 9):
        at = now - timedelta(minutes=minutes)
        ScheduleSlot.objects.create(
            schedule=schedule, at=at, cause="time", outcome="skipped", reason="overlap", decided_at=now
        )
