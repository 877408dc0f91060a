"""The dashboard and the alerts use metrics and labels that exist, and each alert fires once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from temporalex_django.contrib import monitoring
from temporalex_django.telemetry.definitions import METRICS, Kind, Metric

FOLDER = Path(monitoring.__file__).parent
RULES = FOLDER / "prometheus-rules.yml"
CASES = Path(__file__).with_name("prometheus-rules.test.yml")
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]

SERIES = {
    name: metric
    for metric in METRICS
    for name in (
        [f"{metric.name}_{end}" for end in ("bucket", "sum", "count")]
        if metric.kind is Kind.HISTOGRAM
        else [metric.name]
    )
}


def expressions() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]


def used(expression: str) -> list[Metric]:
    return [SERIES[name] for name in re.findall(r"temporalex_\w+", expression)]


def problems(expression: str) -> list[str]:
    """What an expression says that the table of metrics does not know."""
    found = []
    names = re.findall(r"(temporalex_\w+)(?:\{([^}]*)\})?", expression)
    for name, matchers in names:
        if name not in SERIES:
            found.append(f"no series {name}")
            continue
        values = {label.name: label.values for label in SERIES[name].labels}
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            if label not in values:
                found.append(f"{name} has no label {label}")
            elif values[label] and set(value.split("|") if "~" in operator else [value]) - {*values[label]}:
                found.append(f"{label} of {name} is never {value}")
    known = {"le", *(label for name, _ in names if name in SERIES for label in SERIES[name].label_names)}
    for labels in re.findall(r"by \(([^)]*)\)", expression):
        found += [f"by {label}" for label in re.split(r",\s*", labels) if label not in known]
    return found


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_expressions_use_what_the_table_has(place: str, expression: str) -> None:
    assert not problems(expression)
    assert used(expression)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("sum(temporalex_queue_lags)", "no series temporalex_queue_lags"),
        ("rate(temporalex_update_duration_seconds[5m])", "no series temporalex_update_duration_seconds"),
        ('temporalex_workers{status="live"}', "temporalex_workers has no label status"),
        ('temporalex_workers{state=~"live|dead"}', "state of temporalex_workers is never live|dead"),
        ("sum by (workflow) (temporalex_workers)", "by workflow"),
    ],
)
def test_an_expression_that_is_wrong_is_found(expression: str, problem: str) -> None:
    assert problems(expression) == [problem]


def test_legends_use_labels_of_their_expressions() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            grouped = set(re.split(r",\s*", ",".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped, target


def test_the_dashboard_shows_every_metric() -> None:
    shown = {metric.name for panel in PANELS for target in panel["targets"] for metric in used(target["expr"])}
    assert shown == {metric.name for metric in METRICS}


def test_panels_have_a_place_and_a_source_each() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource"]
    assert all(panel["description"].endswith(".") for panel in PANELS)


def test_each_alert_is_described_and_has_a_case_in_which_it_fires() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    names = {rule["alert"] for rule in ALERTS}
    assert {check["alertname"] for check in checks if check.get("exp_alerts")} == names
    for rule in ALERTS:
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["labels"]["severity"] in {"warning", "critical"}


def test_each_alert_fires_by_promtool(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (the Debian package prometheus)")
    cases = tmp_path / "cases.yml"
    cases.write_text(CASES.read_text(encoding="utf-8").replace("RULES", str(RULES)), encoding="utf-8")
    for arguments in (["check", "rules", RULES], ["test", "rules", cases]):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
