"""The list of runs: filters with an address, a line for each run, and exports."""

from __future__ import annotations

import csv
import io
import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db.models import Count, Max, Min, OuterRef, QuerySet, Subquery, Sum, TextField, Value
from django.db.models.functions import Cast, Coalesce, Concat, Now
from django.http import Http404, HttpRequest, HttpResponse, QueryDict, StreamingHttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.access import VIEW_PAYLOAD, policy, redactor_for
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.run_columns import PAYLOAD_COLUMNS
from temporalex_django.authoring.run_filters import NEWEST_FIRST, ORDERS, RUN_FILTERS, FilterType
from temporalex_django.console.actions import bulk_action_error
from temporalex_django.console.base import actor_of, format_time, status_badge, user_of
from temporalex_django.console.live import KEPT_SECONDS_OF_LISTS, MARK, is_poll, is_unchanged, keep, mark_of, unchanged
from temporalex_django.console.mount import ConsoleView
from temporalex_django.core.history.events import CLOSED_STATUSES
from temporalex_django.core.names import TABLES
from temporalex_django.forms.run_filters import RunFilter, select_runs
from temporalex_django.models import ActivityTask, Instance, Status, SwitchedOff, Worker
from temporalex_django.operations import audit
from temporalex_django.operations.base import storage
from temporalex_django.operations.read import run_filters
from temporalex_django.operations.read.run_summary import RunStateLoader
from temporalex_django.operations.registry import STEERING
from temporalex_django.present.formatting import format_exact_time

#: Runs are counted, and offered as pages, up to this number: to count a big table takes seconds.
MAX_COUNT: Final = 1_000
PAGE_SIZE: Final = 50
_MAX_EXPORTED = 100_000
_EXPORT_ROWS = 500
_MAX_NEW = 100
_KEY_BYTES = 16
_DEFERRED_FIELDS = (*PAYLOAD_COLUMNS, "seed", "metadata", "search_attributes")
_OWN_PARAMETERS = ("order", "q", "p")
#: Parameters of a poll, and of pages that take the filters of the list along.
_EXTRA_PARAMETERS = (MARK, "rows", "action", "scope", "run", "format")
_RELATIVE_TIME = re.compile(r"-(\d{1,4})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_NO_MARK = "none"
_NOTHING = Value("", output_field=TextField())
_MARGIN = timedelta(seconds=1)
_OPEN = "pending,running,waiting"
#: The views of the list: the filters of each.
VIEWS: Final[Sequence[tuple[str, Any, Mapping[str, str]]]] = (
    ("all", gettext_lazy("All"), {}),
    ("open", gettext_lazy("Open"), {"status": _OPEN}),
    ("stuck", gettext_lazy("Need attention"), {"stuck": "true"}),
    ("blocked", gettext_lazy("Blocked"), {"blocked": "true"}),
    ("paused", gettext_lazy("Paused"), {"paused": "true"}),
    ("failed", gettext_lazy("Failed in 24 h"), {"status": "failed", "closed_after": "-24h"}),
    ("message", gettext_lazy("Wait for a message"), {"waits": "message"}),
    ("closed", gettext_lazy("Closed"), {"status": ",".join(sorted(CLOSED_STATUSES))}),
)
#: Views whose runs an index finds, so that they can be counted.
_COUNTED = ("stuck", "blocked", "paused", "failed")


class BadParameter(Exception):
    """A parameter of an address that the list does not have, or a value that it does not take."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name, self.message = name, message


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """The runs that an address of the list asks for: its filters as texts, the order, and the text to search for."""

    filters: Mapping[str, str]
    order: str
    search: str

    @classmethod
    def parse(cls, parameters: QueryDict) -> RunQuery:
        """Return the query of an address. Raises ``BadParameter`` for a parameter that the list does not have."""
        for name in parameters:
            if name not in RunFilter.base_filters and name not in (*_OWN_PARAMETERS, *_EXTRA_PARAMETERS):
                raise BadParameter(name, _("The list has no filter with this name."))
        order = parameters.get("order") or NEWEST_FIRST
        if order not in ORDERS:
            raise BadParameter("order", _("Choose one of %(orders)s.") % {"orders": ", ".join(ORDERS)})
        search = (parameters.get("q") or "").strip()
        if not search.isprintable():
            raise BadParameter("q", _("Use printable characters only."))
        filters = {name: str(parameters[name]) for name in RunFilter.base_filters if parameters.get(name)}
        return cls(filters=filters, order=order, search=search)

    def parameters(self, **changes: str) -> dict[str, str]:
        """Return the parameters of an address with this query; ``changes`` replaces some, and removes empty ones."""
        order = {} if self.order == NEWEST_FIRST else {"order": self.order}
        search = {"q": self.search} if self.search else {}
        every = {**self.filters, **order, **search, **changes}
        return {name: value for name, value in every.items() if value}

    def select(self, runs: QuerySet[Instance]) -> QuerySet[Instance]:
        """Return those of the ``runs`` that the query asks for, in its order.

        Raises ``BadParameter`` for a value that a filter does not take.
        """
        now = timezone.now()
        filters = {name: _absolute(name, value, now) for name, value in self.filters.items()}
        try:
            selected = select_runs(RunFilter, filters, runs)
            if self.search:
                selected = run_filters.search_runs(selected, self.search, workflow=self.filters.get("workflow", ""))
        except ValidationError as exc:
            name, texts = next(iter(exc.message_dict.items()))
            raise BadParameter(name, " ".join(texts)) from None
        except ValueError as exc:
            raise BadParameter("q", str(exc)) from None
        return run_filters.order_runs(selected, self.order)


def _absolute(name: str, value: str, now: datetime) -> str:
    """Return a time such as ``-24h``, which lets an address mean the last day, as a time; other values stay."""
    match = _RELATIVE_TIME.fullmatch(value)
    if match is None or RUN_FILTERS[name].type is not FilterType.DATETIME:
        return value
    return (now - timedelta(**{_UNITS[match[2]]: int(match[1])})).isoformat()


def encode_ids(ids: Iterable[UUID]) -> str:
    """Encode the 16 bytes of each id in URL-safe base64."""
    return urlsafe_b64encode(b"".join(run_id.bytes for run_id in ids)).rstrip(b"=").decode()


def decode_ids(text: str) -> list[UUID]:
    """Return the ids of a text that ``encode_ids`` has made. Raises ``Http404`` for another text."""
    try:
        id_bytes = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
    except ValueError:
        raise Http404 from None
    if len(id_bytes) % _KEY_BYTES or len(id_bytes) > PAGE_SIZE * _KEY_BYTES:
        raise Http404
    return [UUID(bytes=id_bytes[start : start + _KEY_BYTES]) for start in range(0, len(id_bytes), _KEY_BYTES)]


class RunListView(ConsoleView):
    """The list of runs, or its lines alone for a poll."""

    template = "temporalex_django/console/runs.html"
    section = "runs"

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            query = RunQuery.parse(request.GET)
            if is_poll(request):
                return self._poll(request, query)
            runs = self.runs(request)
            selected = query.select(runs)
        except BadParameter as exc:
            return self.bad_parameter(request, exc)
        ids = _read_ids(selected, query.order)
        page = Paginator(ids[:MAX_COUNT], PAGE_SIZE).get_page(request.GET.get("p"))
        page_ids = [*page.object_list]
        return self.render(
            request,
            {
                "title": _("Runs"),
                "query": query,
                "page": page,
                "count_text": _count_text(len(ids)),
                "has_more": len(ids) > MAX_COUNT,
                "most": f"{MAX_COUNT:,}",
                "views": self._views(query, runs),
                "chips": [*self._chips(query)],
                "choices": _choices(),
                "orders": _ORDER_LABELS,
                "actions": [
                    (name, action.label)
                    for name, action in STEERING.items()
                    if bulk_action_error(action, user_of(request)) is None
                ],
                "list_address": self.mount.address("runs"),
                "bulk_address": self.mount.address("bulk"),
                "start_address": self.mount.start_address(request),
                "exports": [
                    {
                        "label": label,
                        "address": self.mount.address("export", query={**query.parameters(), "format": kind}),
                    }
                    for kind, label in (("csv", "CSV"), ("jsonl", "JSON lines"))
                ],
                "previous": self._page_address(query, page.previous_page_number()) if page.has_previous() else "",
                "next": self._page_address(query, page.next_page_number()) if page.has_next() else "",
                **self._lines(request, query, page_ids),
            },
        )

    def bad_parameter(self, request: HttpRequest, error: BadParameter) -> HttpResponse:
        """Return the page, with status 400, that names the parameter, and links to the list without it."""
        if is_poll(request):
            return HttpResponse(status=400)
        rest = request.GET.copy()
        for name in (error.name, *_EXTRA_PARAMETERS):
            rest.pop(name, None)
        address = self.mount.address("runs")
        context = {
            "title": _("Unknown parameter"),
            "parameter": error.name,
            "message": error.message,
            "accepted": sorted({*RunFilter.base_filters, *_OWN_PARAMETERS}),
            "back": f"{address}?{rest.urlencode()}" if rest else address,
        }
        return self.render(request, context, template="temporalex_django/console/bad_parameter.html", status=400)

    def _page_address(self, query: RunQuery, number: int) -> str:
        return self.mount.address("runs", query=query.parameters(p=str(number)))

    def _views(self, query: RunQuery, runs: QuerySet[Instance]) -> list[dict[str, Any]]:
        """Return the chips of the views. One read counts those whose runs an index finds."""
        counts = _count_views(runs)
        return [
            {
                "label": label,
                "address": self.mount.address("runs", query=filters),
                "is_current": dict(query.filters) == dict(filters) and not query.search,
                "count": _bounded(counts[name]) if name in counts else "",
                "is_bad": name in ("stuck", "blocked", "failed") and bool(counts.get(name)),
            }
            for name, label, filters in VIEWS
        ]

    def _chips(self, query: RunQuery) -> Iterator[dict[str, str]]:
        """Yield the active filters, each with the address of the list without it."""
        if any(dict(query.filters) == dict(filters) for _name, _label, filters in VIEWS):
            return
        for name, value in query.filters.items():
            title = RUN_FILTERS[name].title or name.replace("_", " ")
            yield {
                "label": f"{_(title)}: {value}",
                "address": self.mount.address("runs", query=query.parameters(**{name: ""})),
            }

    # -- the lines -----------------------------------------------------------------------------------------------------

    def _lines(
        self,
        request: HttpRequest,
        query: RunQuery,
        ids: Sequence[UUID],
        new_count: int = 0,
        facts: _Facts | None = None,
    ) -> dict[str, Any]:
        """Return the context of the lines of the runs with these ids, which a poll replaces."""
        lines, until = _read_lines(ids, user_of(request))
        for line in lines:
            line["address"] = self.mount.run_address(line["run"].pk)
        # Without facts, the first poll reads them: they would be two more statements for each page.
        mark = _NO_MARK if facts is None else mark_of(facts, until)
        poll = {**query.parameters(), "rows": encode_ids(ids), MARK: mark}
        text = ngettext("%(count)s new run", "%(count)s new runs", new_count)
        return {
            "lines": lines,
            "new_text": text % {"count": f"{_MAX_NEW}+" if new_count > _MAX_NEW else new_count} if new_count else "",
            "poll_address": self.mount.address("runs", query=poll),
            "reload_address": self.mount.address("runs", query=query.parameters()),
        }

    def _poll(self, request: HttpRequest, query: RunQuery) -> HttpResponse:
        """Return the lines that the browser shows, at most two seconds old, or status 204.

        Two reads if nothing has changed, and none if somebody who sees the same runs has just asked. Raises
        ``BadParameter``.
        """
        rows = request.GET.get("rows", "")
        ids = decode_ids(rows)
        sees_all = self.mount.visible_runs(request) is None
        user = None if sees_all else getattr(user_of(request), "pk", None)
        scope = (self.mount.namespace, storage().alias, user, rows, *query.parameters().items())

        def read() -> _Facts:
            runs = self.runs(request)
            selected, newest = query.select(runs), max(ids, default=None)
            return _facts(runs, ids, _new_runs(query, selected if newest is None else selected.filter(pk__gt=newest)))

        facts = keep(("runs", *scope), read, fresh=False, seconds=KEPT_SECONDS_OF_LISTS)
        # Sentences quote errors only for those who may see payloads.
        facts = replace(facts, shows_payloads=policy().allows(user_of(request), VIEW_PAYLOAD))
        if is_unchanged(request, facts, timezone.now()):
            return unchanged()
        visible = [run_id for run_id in ids if run_id in facts.rows]
        context = self._lines(request, query, visible, facts.new_count, facts)
        return self.render(request, {**context, "query": query, "announcement": context["new_text"]})


@dataclass(frozen=True, slots=True)
class _Facts:
    """The facts that the lines of a list show, in a form that is cheap to read and to compare.

    ``rows`` has the facts of the runs by id, without runs that the user may not see any more.
    """

    rows: Mapping[UUID, str]
    fleet: Sequence[Any]
    new_count: int
    shows_payloads: bool = False


def _facts(runs: QuerySet[Instance], ids: Sequence[UUID], new_runs: QuerySet[Instance]) -> _Facts:
    """Read the facts about the runs with these ids, about the workers and switches, and count new runs. Two reads."""
    tasks = ActivityTask.objects.using(runs.db).filter(run_id=OuterRef("pk")).order_by().values("run_id")
    parts = (Count("pk"), Count("owner"), Sum("attempt"), Max("failed_at"), Min("due_at"))
    texts = [Coalesce(Cast(part, TextField()), _NOTHING) for part in parts]
    rows = run_filters.annotate_failed_messages(
        runs.order_by().filter(pk__in=ids).annotate(work=Subquery(tasks.annotate(text=Concat(*texts)).values("text")))
    )
    columns = ("pk", "status", "blocked", "paused", "chain__run_id", "chain__activations", "chain__due_at")
    new = Instance.objects.using(runs.db).filter(pk__in=new_runs.order_by().values("pk")[: _MAX_NEW + 1])
    pairs = fleet_facts(runs.db, _pairs(new, "pk", None))
    new_count = sum(mark == "new" for _key, mark in pairs)
    return _Facts(
        rows={row[0]: str(row[1:]) for row in rows.order_by("pk").values_list(*columns, "work", "failed_count")},
        fleet=[pair for pair in pairs if pair[1] != "new"],
        new_count=new_count,
    )


def fleet_facts(alias: str, *others: Any) -> list[Any]:
    """Return the facts about workers and switches that sentences about runs depend on; ``others`` are more of them.

    One read.
    """
    workers = Worker.objects.using(alias).filter(expires_at__gt=Now(), buried_at=None)
    switches = _pairs(SwitchedOff.objects.using(alias), "pk", "until")
    return sorted(_pairs(workers, "pk", "drained_at").union(switches, *others, all=True).order_by())


def _pairs(rows: Any, key: str, mark: str | None) -> Any:
    second = Value("new", output_field=TextField()) if mark is None else Coalesce(Cast(mark, TextField()), _NOTHING)
    return (
        rows.order_by().annotate(fact_key=Cast(key, TextField()), fact_mark=second).values_list("fact_key", "fact_mark")
    )


def _new_runs(query: RunQuery, runs: QuerySet[Instance]) -> QuerySet[Instance]:
    """Return the runs that may be announced as new: those of the first page of a list by the start, newest first."""
    if query.order != NEWEST_FIRST:
        return runs.none()
    return runs


def _read_ids(selected: QuerySet[Instance], order: str) -> list[UUID]:
    """Return the ids of the first runs, one more than are counted. One read, or a few in the order of closing."""
    limited = run_filters.limit_to_range(selected, order, None, rows=MAX_COUNT + 1)
    # For a small LIMIT, PostgreSQL may walk the index of the order and read the whole table where few runs match.
    return [*limited.values_list("pk", flat=True)[: max(MAX_COUNT + 1, run_filters.fetch_size(order, MAX_COUNT + 1))]]


def _read_lines(ids: Sequence[UUID], user: Person) -> tuple[list[dict[str, Any]], datetime]:
    """Return the lines of the runs with these ids, in their order, and the time until which they are true."""
    # Not from the filtered queryset: its joins and filters are not needed again for rows that are found by key.
    rows: QuerySet[Instance] = Instance.objects.using(storage().alias).defer(*_DEFERRED_FIELDS).select_related("chain")
    rows = run_filters.annotate_failed_messages(run_filters.annotate_ends(rows))
    runs_by_id = {run.pk: run for run in rows.filter(pk__in=ids)}
    # A run may have been deleted meanwhile.
    runs = [runs_by_id[pk] for pk in ids if pk in runs_by_id]
    loader = RunStateLoader(runs)
    now = loader.now
    lines, changes = [], [now + timedelta(days=1)]
    for run in runs:
        summary = loader.summary(run, redactor_for(user, run))
        age, changes_at = _age(run.created_at, now)
        changes.append(changes_at)
        # What waits for a worker tells for how long; the other times are those at which it continues by itself.
        if run.pk in loader.due_times:
            changes.append(now + timedelta(seconds=30))
        changes += [at for at in (summary.until, run.chain.due_at) if at is not None and at > now]
        due_at = (run.chain.due_at or summary.until) if run.is_open and run.chain.run_id == run.pk else None
        lines.append(
            {
                "run": run,
                "badge": status_badge("blocked" if run.blocked and run.is_open else run.status),
                "text": summary.text,
                "is_bad": summary.trouble,
                "age": age,
                "created": format_exact_time(run.created_at),
                "due": None if due_at is None else format_time(due_at),
                "on_cluster": run.backend != TABLES,
            }
        )
    return lines, max(min(changes), now) + _MARGIN


def _age(since: datetime, now: datetime) -> tuple[str, datetime]:
    """Return how long ago a time was, in its largest unit, and when this text changes."""
    seconds = max(0, int((now - since).total_seconds()))
    for size, text in ((86_400, _("%d d")), (3_600, _("%d h")), (60, _("%d min"))):
        if seconds >= size:
            return text % (seconds // size), since + timedelta(seconds=(seconds // size + 1) * size)
    return _("now"), since + timedelta(seconds=60)


def _count_views(runs: QuerySet[Instance]) -> dict[str, int]:
    """Return the numbers of runs of those views that can be counted, each up to ``MAX_COUNT``. Two reads."""
    selections = []
    stored = Instance.objects.using(runs.db).order_by()
    for name, _label, filters in VIEWS:
        if name in _COUNTED:
            selected = RunQuery(filters=filters, order=NEWEST_FIRST, search="").select(runs).order_by()
            members = stored.filter(pk__in=selected.values("pk")[: MAX_COUNT + 1])
            selections.append(
                members.annotate(view=Value(name))
                .values("view")
                .annotate(number=Count("pk"))
                .values_list("view", "number")
            )
    return dict(selections[0].union(*selections[1:], all=True).order_by())


def _bounded(count: int) -> str:
    return f"{MAX_COUNT:,}+" if count > MAX_COUNT else f"{count:,}"


def _count_text(count: int) -> str:
    if count > MAX_COUNT:
        return _("more than %(count)s runs") % {"count": f"{MAX_COUNT:,}"}
    return ngettext("%(count)d run", "%(count)d runs", count) % {"count": count}


_ORDER_LABELS = (
    (NEWEST_FIRST, gettext_lazy("Newest first")),
    ("started", gettext_lazy("Oldest first")),
    ("-closed", gettext_lazy("Most recently closed first")),
    ("closed", gettext_lazy("Earliest closed first")),
    ("due", gettext_lazy("Earliest due first")),
    ("-due", gettext_lazy("Latest due first")),
)


def _choices() -> dict[str, list[Any]]:
    """Return the choices of the form of filters. They come from the code of this process: nothing is read."""
    classes = workflows.concrete_classes()
    return {
        "workflow": sorted(workflows.registry),
        "status": [*Status.choices],
        "queue": sorted({"default", *(cls.task_queue for cls in classes)}),
        "tag": sorted({tag for cls in classes for tag in cls.tags}),
        "waits": [
            ("message", _("a message")),
            ("activity", _("an activity")),
            ("timer", _("a timer")),
            ("child", _("another run")),
        ],
    }


# --- exports ----------------------------------------------------------------------------------------------------------
#
# The runs of a list as a file, which is sent while it is read.


_COLUMNS = (
    *("workflow_id", "id", "workflow", "version", "queue", "status", "cause"),
    *("created_at", "started_at", "closed_at"),
)
#: Beginnings of a cell that a spreadsheet takes for a formula.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class ExportView(ConsoleView):
    """The runs of a list as CSV or JSON lines, without payloads. The audit log records who has taken them."""

    template = ""

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        kind = request.GET.get("format", "")
        if kind not in _WRITERS:
            raise Http404
        try:
            query = RunQuery.parse(request.GET)
            selected = query.select(self.runs(request))
        except BadParameter as exc:
            return RunListView(self.mount).bad_parameter(request, exc)
        content_type, write = _WRITERS[kind]
        audit.record_export(actor_of(request), query.parameters(), kind=kind)
        rows = run_filters.iterate_runs(selected.only(*_COLUMNS, "chain_id"), query.order, size=_EXPORT_ROWS)
        name = f"runs-{timezone.localtime():%Y-%m-%d-%H%M}.{kind}"
        response: Any = StreamingHttpResponse(write(_first(rows, _MAX_EXPORTED)), content_type=content_type)
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response  # type: ignore[no-any-return] # Django's responses share no useful type


def _first(rows: Iterator[Instance], most: int) -> Iterator[Instance]:
    for _number, run in zip(range(most), rows, strict=False):
        yield run


def _cells(run: Instance) -> dict[str, Any]:
    values = {name: getattr(run, name) for name in _COLUMNS}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def _csv_lines(rows: Iterator[Instance]) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(_COLUMNS)
    for run in rows:
        writer.writerow([_escape_formula(value) for value in _cells(run).values()])
        if buffer.tell() > 60_000:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def _escape_formula(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would run as a formula."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return "" if value is None else value


def _json_lines(rows: Iterator[Instance]) -> Iterator[str]:
    for run in rows:
        yield json.dumps(_cells(run), ensure_ascii=False, default=str) + "\n"


_WRITERS = {
    "csv": ("text/csv; charset=utf-8", _csv_lines),
    "jsonl": ("application/jsonl; charset=utf-8", _json_lines),
}
