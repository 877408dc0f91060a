"""The page of a run: its head, and one of its parts, each with an address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Max, Min, OuterRef, QuerySet, Subquery, Sum, TextField, Value
from django.db.models.functions import Cast, Coalesce, Concat
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_lazy

from temporalex_django.access import VIEW, VIEW_PAYLOAD, policy
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.run_columns import PAYLOAD_COLUMNS
from temporalex_django.console.actions import permission_error
from temporalex_django.console.base import actor_of, user_of
from temporalex_django.console.live import MARK, is_poll, is_unchanged, mark_of, unchanged
from temporalex_django.console.run.detail import RunDetail
from temporalex_django.console.run.graph import graph_class_of
from temporalex_django.console.run.timeline import timeline_context
from temporalex_django.console.run.views import OneRunView
from temporalex_django.console.runs import fleet_facts
from temporalex_django.models import ActivityTask, HumanTask, Instance, Message
from temporalex_django.operations import audit
from temporalex_django.operations.base import storage
from temporalex_django.operations.read.run_filters import annotate_attempts, annotate_messages, annotate_switches
from temporalex_django.operations.registry import STEERING

#: The parts of the page, in their order. The first one is the page itself.
PARTS: Final[Mapping[str, Any]] = {
    "timeline": gettext_lazy("Timeline"),
    "graph": gettext_lazy("Graph"),
    "messages": gettext_lazy("Messages"),
    "data": gettext_lazy("Data"),
    "people": gettext_lazy("People"),
    "family": gettext_lazy("Family"),
    "audit": gettext_lazy("Audit"),
    "raw": gettext_lazy("Raw"),
}
#: Parts for which a run on a cluster has to tell its history.
_WITH_EVENTS = ("timeline", "graph", "data", "raw")
_NO_MARK = "none"
#: Texts such as "since 14:02 (3 min)" change by time alone.
_MINUTE = timedelta(minutes=1)
_NOTHING = Value("", output_field=TextField())
#: Parameters of the address that a poll repeats.
_RANGE = ("before", "after")


class RunPageView(OneRunView):
    """The page of a run, or the fragment of it that a poll replaces."""

    template = "temporalex_django/console/run/page.html"

    def prepare(self, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        return annotate_attempts(annotate_messages(annotate_switches(runs)))

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        part = kwargs.get("part", "timeline")
        if part not in PARTS:
            raise Http404
        mark = _NO_MARK
        if is_poll(request):
            run, facts = _read_facts(self.runs(request), kwargs["run_id"], user_of(request))
            if run is None:
                return HttpResponse(status=404)
            if not policy().allows(user_of(request), VIEW.of(run)):
                return HttpResponse(status=403)
            if is_unchanged(request, facts, timezone.now()):
                return unchanged()
            mark = mark_of(facts, _true_until(run))
        return super().respond(request, run_id=kwargs["run_id"], part=part, mark=mark)

    def respond_run(self, request: HttpRequest, run: Instance, **kwargs: Any) -> HttpResponse:
        part, is_fragment = kwargs["part"], is_poll(request)
        detail = RunDetail(
            request,
            self.mount,
            run,
            visible_runs=self.runs(request),
            with_events=part in _WITH_EVENTS,
            with_audit=part == "audit",
        )
        # A fragment shows no payloads.
        if detail.redactor.shows_payloads and not is_fragment:
            audit.record_read(actor_of(request), run)
        context = {
            "title": run.workflow_id,
            "part": part,
            "parts": self._parts(run, part),
            "newest": self.newest_address(request, run),
            "announcement": detail.summary.text,
            "poll_address": self._poll_address(request, run, part, kwargs["mark"]) if run.is_open else "",
            "limit": detail.row_limit,
            **detail.head(),
            **(self._part_context(detail, part) if part == "timeline" or not is_fragment else {}),
        }
        return self.render(request, context)

    def _part_context(self, detail: RunDetail, part: str) -> dict[str, Any]:
        parts = {
            "timeline": lambda: timeline_context(detail),
            "graph": detail.graph_part,
            "messages": detail.messages_part,
            "data": detail.data_part,
            "people": detail.people_part,
            "family": detail.family_part,
            "audit": detail.audit_part,
            "raw": detail.raw_part,
        }
        return {**parts[part](), "part_template": f"temporalex_django/console/run/part_{part}.html"}

    def _parts(self, run: Instance, current: str) -> list[dict[str, Any]]:
        """Return the links to the parts of the page."""
        return [
            {"name": name, "label": label, "address": self._part_address(run, name), "is_current": name == current}
            for name, label in PARTS.items()
            if name != "graph" or graph_class_of(run) is not None
        ]

    def _part_address(self, run: Instance, part: str, **query: Any) -> str:
        if part == "timeline":
            return self.mount.address("run", run.pk, query=query)
        return self.mount.address("run_part", run.pk, part, query=query)

    def _poll_address(self, request: HttpRequest, run: Instance, part: str, mark: str) -> str:
        """Return the URL of the fragment. Nothing changes on a page of earlier rows: it polls its head only."""
        bounds = {name: request.GET[name] for name in _RANGE if name in request.GET}
        return self._part_address(run, part, **bounds, **{MARK: mark})


def _true_until(run: Instance) -> datetime:
    """Return the time at which the fragment of a run may change by time alone."""
    now = timezone.now()
    due_at: datetime | None = run.chain.due_at
    changes = [now + _MINUTE, *([due_at] if due_at is not None and due_at > now else [])]
    return min(changes) + timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _RunFacts:
    """The facts that the fragment of a run shows, in a form that is cheap to read and to compare."""

    run: Any
    fleet: Any
    permissions: Any


def _read_facts(runs: QuerySet[Instance], run_id: UUID, user: Person) -> tuple[Instance | None, _RunFacts | None]:
    """Read the run, without payloads, and the facts about it. Two reads; the run is None if there is none."""
    rows = annotate_messages(runs.order_by()).defer(*PAYLOAD_COLUMNS, "seed", "metadata", "search_attributes")
    rows = rows.annotate(
        work=_text_of(
            ActivityTask.objects.filter(run_id=OuterRef("pk")).values("run_id"),
            *(Count("pk"), Count("owner"), Sum("attempt"), Max("failed_at"), Min("due_at"), Max("beat_at")),
        ),
        inbox=_text_of(
            Message.objects.filter(chain_id=OuterRef("chain_id"), settled=False).values("chain_id"),
            Count("pk"),
            Max("pk"),
        ),
        asked=_text_of(
            HumanTask.objects.open().filter(run_id=OuterRef("pk")).values("run_id"),
            *(Count("pk"), Max("claimed_until"), Max("claimed_by_name")),
        ),
        kin=_text_of(
            Instance.objects.filter(parent_run_id=OuterRef("pk")).values("parent_run_id"),
            *(Count("pk"), Count("closed_at"), Count("blocked"), Sum("chain__activations")),
        ),
    )
    run = rows.select_related("chain").filter(pk=run_id).first()
    if run is None:
        return None, None
    chain: Any = run.chain
    facts: Any = run
    row = (
        *(run.status, run.blocked, run.paused, run.mirrored_at, chain.run_id, chain.activations, chain.length),
        *(chain.due_at, chain.deadline, facts.failed_count, facts.work, facts.inbox, facts.asked, facts.kin),
    )
    refused = [
        permission_error(action, user, run) is not None for action in STEERING.values() if action.target_kind == "run"
    ]
    shows_payloads = policy().allows(user, VIEW_PAYLOAD.of(run))
    return run, _RunFacts(run=row, fleet=fleet_facts(storage().alias), permissions=(shows_payloads, refused))


def _text_of(rows: Any, *parts: Any) -> Any:
    """Return a subquery with one text of aggregates, by which a change of the rows is seen."""
    texts = [Coalesce(Cast(part, TextField()), _NOTHING) for part in parts]
    return Subquery(rows.order_by().annotate(text=Concat(*texts, output_field=TextField())).values("text"))
