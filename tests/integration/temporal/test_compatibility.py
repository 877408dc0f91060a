"""The adapter fits the installed SDK, and says what differs where another one is installed."""

from __future__ import annotations

import subprocess
import sys
from abc import abstractmethod

import pytest
from temporalio.bridge.proto.workflow_activation import QueryWorkflow, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.worker import WorkflowInstance, WorkflowRunner

from temporalex_django.temporal import compatibility
from tests.structure.source import ROOT

pytestmark = pytest.mark.each_python

PROGRAM = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django
django.setup()
import temporalex_django, temporalex_django.client, temporalex_django.testing, temporalex_django.workers.loop
from temporalex_django import GraphWorkflow, Workflow, activity, api
print(sorted(name for name in sys.modules if name.partition(".")[0] == "temporalio"))
"""


def test_the_package_does_not_import_the_sdk():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_installed_sdk_fits():
    compatibility.check()


class NewRunner(WorkflowRunner):
    @abstractmethod
    def warm_up(self): ...


class OldInstance(WorkflowInstance):
    def get_info(self): ...


class Fields:
    """A message whose fields lack some; for the descriptor of another SDK."""

    def __init__(self, message, *, without):
        group = message.DESCRIPTOR.oneofs_by_name["variant"]
        self.DESCRIPTOR = self
        self.oneofs_by_name = {"variant": self}
        self.fields = [field for field in group.fields if field.name not in without]


@pytest.mark.parametrize(
    ("parts", "difference"),
    [
        ({"runner": NewRunner}, "the abstract method of NewRunner 'warm_up' is new"),
        ({"instance": OldInstance}, "the abstract method of OldInstance 'get_info' does not exist"),
        (
            {"job": Fields(WorkflowActivationJob, without={"do_update"})},
            "the job 'do_update' does not exist",
        ),
        (
            {"command": Fields(WorkflowCommand, without={"set_patch_marker"})},
            "the command 'set_patch_marker' does not exist",
        ),
    ],
)
def test_a_difference_is_named_with_the_versions_that_fit(monkeypatch, parts, difference):
    usual = {
        "runner": WorkflowRunner,
        "instance": WorkflowInstance,
        "job": WorkflowActivationJob,
        "command": WorkflowCommand,
    }
    differences = compatibility._differences(**{**usual, **parts})
    monkeypatch.setattr(compatibility, "_differences", lambda *_: differences)
    with pytest.raises(compatibility.UnsupportedSdk) as refused:
        compatibility.check()
    assert difference in str(refused.value)
    assert "temporalio 1.35" in str(refused.value)


def test_a_field_that_is_set_and_gone_is_named(monkeypatch):
    monkeypatch.setitem(compatibility._FIELDS, "respond_to_query", {"query_id", "colour"})
    assert "colour" not in QueryWorkflow.DESCRIPTOR.fields_by_name
    with pytest.raises(compatibility.UnsupportedSdk, match="'respond_to_query' lacks colour"):
        compatibility.check()
