"""How many workers a queue needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from temporalex_django import Ok, Workflow, activity
from temporalex_django.db.storage import DjangoStorage
from temporalex_django.liveness.leases import WorkerRow
from temporalex_django.models import Worker
from temporalex_django.operations.fleet import facts
from temporalex_django.operations.fleet.stats import QueueDemand, QueueFigures, compute_demand
from temporalex_django.telemetry import definitions
from temporalex_django.workers.loop import run_until_idle

pytestmark = pytest.mark.of_the_tables("the load of workers of the tables")

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "scaling.md"


def figures(**values: Any) -> QueueFigures:
    defaults: dict[str, Any] = {
        "queue": "q", "due_runs": 0, "due_activities": 0, "held_activities": 0, "running": 0, "workers": [],
        "oldest_due": None, "lag": 0.0, "off": False, "held_until": None, "concurrency": None, "rate": None,
    }  # fmt: skip
    return QueueFigures(**{**defaults, **values})


def load(rate: float = 0.0, seconds: float = 1.0, *, share: float = 1 / 8, busy: float = 0.0, run: float = 0.01) -> Any:
    queues = {"q": {"rate": rate, "seconds": seconds, "share": share}} if rate else {}
    return {"busy": busy, "run_seconds": run, "queues": queues}


def demand(*loads: Any, **values: Any) -> QueueDemand:
    return compute_demand(figures(**values), loads, target=10.0, default_slots=8)


def test_without_work_none_is_needed():
    assert (demand().workers_needed, demand().need) == (0, 0.0)
    assert demand(load()).workers_needed == 0


@pytest.mark.parametrize("work", [{"due_runs": 1}, {"due_activities": 1}, {"running": 1}])
def test_with_any_work_one_is_needed(work):
    assert demand(**work).workers_needed == 1


def test_a_steady_load_needs_its_rate_times_its_duration():
    """Two workers with 8 activities of 0.5 s in a second each: 8 run at a time, which is 80 % of 1.25 workers."""
    both = demand(load(8.0, 0.5), load(8.0, 0.5))
    assert (both.need, both.workers_needed) == (1.25, 2)
    assert (both.attempt_rate, both.attempt_seconds, both.slots) == (16.0, 0.5, 8.0)


def test_what_waits_is_to_be_done_within_the_target_and_sooner_if_it_is_late():
    """320 activities of 1 s: 32 at a time for 10 s."""
    in_time = demand(load(0.001, 1.0), due_activities=320)
    late = demand(load(0.001, 1.0), due_activities=320, lag=5.0)
    very_late = demand(load(0.001, 1.0), due_activities=320, lag=500.0)
    assert in_time.need == pytest.approx(5.0, rel=0.001)
    assert late.need == pytest.approx(2 * in_time.need, rel=0.001)
    assert very_late.need == pytest.approx(4 * in_time.need, rel=0.001)


def test_runs_need_workers_too():
    """2,000 due runs of 10 ms: 20 s of work for 10 s; and workers that are busy all the time."""
    assert demand(load(run=0.01), due_runs=2_000).need == pytest.approx(2.5)
    assert demand(load(busy=1.0), load(busy=1.0)).workers_needed == 3


def test_async_activities_take_a_small_part_of_a_worker():
    assert demand(load(100.0, 1.0, share=1 / 100)).need == pytest.approx(1.25)


def test_more_workers_do_not_start_what_a_limit_holds():
    assert demand(load(1.0, 1.0), due_activities=10_000, concurrency=8).need == pytest.approx(1.25)
    assert demand(due_activities=500, held_activities=500).workers_needed == 0
    assert demand(due_activities=500, off=True, due_runs=500).workers_needed == 0
    assert demand(due_activities=500, held_until=datetime.now(UTC)).workers_needed == 0
    assert demand(off=True, running=3).workers_needed == 1


@pytest.mark.parametrize("figure", ["due_runs", "due_activities", "running", "lag"])
def test_more_of_anything_never_needs_fewer(figure):
    needs = [
        demand(load(2.0, 0.5, busy=0.2), **{"due_activities": 50, "due_runs": 50, figure: value}).need
        for value in (1, 2, 5, 9, 12, 100, 5_000)
    ]
    assert needs == sorted(needs)


# -- in the database -----------------------------------------------------------------------------------------------


@activity(name="scaling.noted", queue="scaling-mail")
def noted(value: Any = None) -> Any:
    return value


class Scaled(Workflow):
    name = "scaling.Scaled"

    async def run(self, args: Any) -> Any:
        return Ok(await noted(args))


def said() -> dict[str, Any]:
    out = StringIO()
    call_command("temporalex", "health", "--queues", "--json", stdout=out)
    return {queue["queue"]: queue for queue in json.loads(out.getvalue())["queues"]}


@pytest.mark.each_database
@pytest.mark.django_db(transaction=True)
def test_a_worker_stores_its_load_and_the_command_prints_the_demand():
    row = WorkerRow(kind="worker", queues=["scaling-mail"], workflows={})
    row.register(DjangoStorage())
    assert Worker.objects.get(pk=row.id).load is None
    measured = {
        "busy": 0.5,
        "run_seconds": 0.01,
        "queues": {"scaling-mail": {"rate": 40, "seconds": 1.0, "share": 0.125}},
    }
    assert row.send_heartbeat(DjangoStorage(), load=measured)

    mail = said()["scaling-mail"]

    assert (mail["workers"], mail["need"], mail["workers_needed"]) == (1, 6.25, 7)
    assert facts.read_facts("default")[definitions.QUEUE_WORKERS_NEEDED]["scaling-mail",] == 6.25


@pytest.mark.django_db(transaction=True)
def test_without_a_worker_the_command_says_that_one_is_needed(capsys):
    Scaled.start("a", id="scaled")

    assert said()["default"]["workers_needed"] == 1
    call_command("temporalex", "health", "--queues")
    assert "queue default: needs 1 worker, has 0 (lag " in capsys.readouterr().out
    run_until_idle()
    assert said()["default"]["workers_needed"] == 0


@pytest.mark.django_db(transaction=True)
def test_the_target_is_a_setting(settings):
    row = WorkerRow(kind="worker", queues=["default"], workflows={})
    row.register(DjangoStorage())
    row.send_heartbeat(DjangoStorage(), load={"busy": 0.0, "run_seconds": 1_000.0, "queues": {}})
    Scaled.start("a", id="target")
    needs = []
    for seconds in (1e5, 1e7):
        settings.TEMPORALEX = {**settings.TEMPORALEX, "TARGET_LAG_SECONDS": seconds}
        needs.append(said()["default"]["need"])
    assert needs[0] > 10 * needs[1]


# -- the examples --------------------------------------------------------------------------------------------------


def queries() -> list[str]:
    """The queries of the page, as Prometheus gets them."""
    found = []
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        document = yaml.safe_load(block)
        found += [trigger["metadata"]["query"] for trigger in document.get("spec", {}).get("triggers", [])]
        for rule in document.get("rules", {}).get("external", []):
            query = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"])
            found.append(query.replace("<<.LabelMatchers>>", 'queue="default"'))
    return found


def test_the_queries_of_the_page_give_the_need(tmp_path: Path):
    """They are evaluated on the text that two workers export, one of which has just taken over from the other."""
    assert len(queries()) == 2
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (the Debian package prometheus)")
    family = GaugeMetricFamily(
        definitions.QUEUE_WORKERS_NEEDED.name, "help", labels=definitions.QUEUE_WORKERS_NEEDED.label_names
    )
    for queue, need in (("default", 2.25), ("mail", 0.5), ("other", 9.0)):
        family.add_metric([queue], need)

    class Exported:
        def collect(self):
            yield family

    registry = CollectorRegistry()
    registry.register(Exported())
    scraped = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    series = [
        {
            "series": line.rpartition(" ")[0].replace("{", f'{{instance="{worker}",'),
            "values": f"{line.rpartition(' ')[2]}x10",
        }
        for line in scraped
        for worker in ("a", "b")
    ]
    checks = [
        {"expr": query, "eval_time": "1m", "exp_samples": [{"value": value}]}
        for query, value in zip(queries(), (2.75, 2.25), strict=True)
    ]
    case = tmp_path / "case.yml"
    case.write_text(
        yaml.safe_dump(
            {
                "evaluation_interval": "15s",
                "tests": [{"interval": "15s", "input_series": series, "promql_expr_test": checks}],
            }
        )
    )
    done = subprocess.run([promtool, "test", "rules", case], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
