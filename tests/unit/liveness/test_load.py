"""The load that a worker measures."""

from __future__ import annotations

import pytest

from temporalex_django.engine.policy import MAX_MEASURED_QUEUES
from temporalex_django.liveness import health
from temporalex_django.liveness.health import LoadMeter


@pytest.fixture
def clock(monkeypatch):
    moment = [1_000.0]
    monkeypatch.setattr(health.time, "monotonic", lambda: moment[0])
    return moment


def test_rates_durations_and_the_part_of_the_time_that_is_busy(clock):
    meter = LoadMeter()
    for seconds in (1.0, 3.0):
        meter.add_attempt("mail", seconds, slots=8)
    meter.add_attempt("slow", 10.0, slots=100)
    meter.add_poll(0.5, runs=10)
    clock[0] += 10.0

    assert meter.load() == {
        "busy": 0.05,
        "run_seconds": 0.05,
        "queues": {
            "mail": {"rate": 0.2, "seconds": 2.0, "share": 0.125},
            "slow": {"rate": 0.1, "seconds": 10.0, "share": 0.01},
        },
    }


def test_what_was_measured_fades_and_is_forgotten(clock):
    meter = LoadMeter()
    meter.add_attempt("mail", 1.0, slots=8)
    meter.add_poll(1.0, runs=1)
    clock[0] += 10.0
    rates = [meter.load()["queues"]["mail"]["rate"]]
    for _ in range(3):
        clock[0] += 30.0
        rates.append(meter.load()["queues"]["mail"]["rate"])
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < rates[0] / 10
    clock[0] += 600.0
    meter.load()
    assert meter.load()["queues"] == {}


def test_a_steady_rate_stays(clock):
    meter = LoadMeter()
    for _ in range(40):
        for _ in range(20):
            meter.add_attempt("mail", 0.5, slots=8)
        clock[0] += 10.0
        rate = meter.load()["queues"]["mail"]["rate"]
    assert rate == pytest.approx(2.0, rel=0.02)


def test_before_anything_is_measured(clock):
    assert LoadMeter().load() == {"busy": 0.0, "run_seconds": None, "queues": {}}


def test_queues_are_bounded(clock):
    meter = LoadMeter()
    for number in range(MAX_MEASURED_QUEUES + 50):
        meter.add_attempt(f"queue-{number}", 1.0, slots=8)
    clock[0] += 1.0
    assert len(meter.load()["queues"]) == MAX_MEASURED_QUEUES
