"""The desk: human tasks by their candidates and one by one, and the page of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.db.models import F, Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from temporalex_django.access import VIEW, VIEW_PAYLOAD, Operation, policy
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.console.actions import ReasonForm
from temporalex_django.console.base import actor_of, badge, format_time, refuse, shorten, user_of
from temporalex_django.console.live import MARK, is_poll, is_unchanged, keep, mark_of, unchanged
from temporalex_django.console.mount import ConsoleView
from temporalex_django.errors import HumanTaskNotFound, TemporalexError
from temporalex_django.forms.human_task_form import outcome_label
from temporalex_django.forms.task_page import TaskPage
from temporalex_django.models import HumanTask, HumanTaskQuerySet
from temporalex_django.operations.base import storage
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.desk import (
    DeskGroup,
    claimed_by,
    desk_groups,
    oldest_open,
    people_asked,
    reassign,
    tasks_asking,
)
from temporalex_django.operations.human_tasks.inbox import candidates_of, find_task, inbox, redact_tasks, tasks_of
from temporalex_django.operations.human_tasks.operations import Delegate, find_user
from temporalex_django.present.human_tasks import candidate_names, step_name

#: Rows of a page, tasks that the groups count, and the largest number of a page.
_PAGE_SIZE, MAX_COUNTED, _LAST_PAGE = 50, 1_000, 100_000
_ENDINGS = {"decided": "completed", "overdue": "timed_out", "cancelled": "cancelled", "run_closed": "terminated"}
#: The views of the list; those of all runs need the permission to view runs.
_VIEWS: Sequence[tuple[str, Any]] = (
    ("all", gettext_lazy("All that I can see")),
    ("inbox", gettext_lazy("For me to decide")),
    ("mine", gettext_lazy("Claimed by me")),
    ("closed", gettext_lazy("Closed")),
)
_DUE: Sequence[tuple[str, Any]] = (
    ("", gettext_lazy("any due time")),
    ("overdue", gettext_lazy("Overdue")),
    ("today", gettext_lazy("Within a day")),
    ("week", gettext_lazy("Within a week")),
    ("never", gettext_lazy("No due date")),
)
_DAYS = {"overdue": 0, "today": 1, "week": 7}
_FILTERS = ("whose", "due", "asked", "workflow", "q")
_MAY_REASSIGN = Operation(action=Delegate.name, permission=f"{APP}.delegate_humantask")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """The tasks of a page as the user may see them, the groups of all open ones, and the people whom these ask."""

    tasks: Sequence[HumanTask]
    number: int
    has_next: bool
    groups: Sequence[DeskGroup]
    counted: int
    people: Sequence[str]


class DeskView(ConsoleView):
    """The human tasks, by their candidates and one by one.

    Users need no permission to see the tasks that they may decide. Users who may view runs see the other tasks of
    these runs, too.
    """

    template = "temporalex_django/console/desk.html"
    section = "desk"
    operation = None

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        user, number = user_of(request), request.GET.get("p") or "1"
        query = _query_of(request.GET, user)
        key = (
            "desk",
            storage().alias,
            self.mount.namespace,
            getattr(user, "pk", None),
            number,
            policy().allows(user, VIEW),
            *query.values(),
        )
        desk = keep(key, lambda: self._read(request, query, number), fresh=not is_poll(request))
        now = timezone.now()
        rows = [self._row(task, now) for task in desk.tasks]
        groups = [self._group(group, query) for group in desk.groups]
        facts = [[{**row, "task": row["task"].pk} for row in rows], groups, desk.has_next]
        if is_poll(request) and is_unchanged(request, facts, now):
            return unchanged()
        chosen = {name: value for name, value in query.items() if value}
        overdue = sum(row["is_late"] for row in rows)
        context = {
            "title": _("Human tasks"),
            "rows": rows,
            "groups": groups,
            "most": f"{MAX_COUNTED:,}" if desk.counted >= MAX_COUNTED else "",
            "query": query,
            "asked": candidate_names([query["asked"]])[0] if query["asked"] else "",
            "asked_address": self._address({**chosen, "asked": ""}),
            "is_filtered": bool({*chosen} - {"whose"}),
            "views": [
                {
                    "label": label,
                    "address": self._address({**chosen, "whose": whose}),
                    "is_current": whose == query["whose"],
                }
                for whose, label in _views_for(user)
            ],
            "due_choices": _DUE,
            "number": desk.number,
            "previous": self._address({**chosen, "p": str(desk.number - 1)}) if desk.number > 1 else "",
            "next": self._address({**chosen, "p": str(desk.number + 1)}) if desk.has_next else "",
            "may_reassign": policy().allows(user, _MAY_REASSIGN),
            "form": self._form(desk.people, user, query),
            "reassign_address": self.mount.address("reassign"),
            "poll_address": self._address({**chosen, "p": str(desk.number), MARK: mark_of(facts, None)}),
            "announcement": ngettext("%(count)d task is overdue", "%(count)d tasks are overdue", overdue)
            % {"count": overdue},
        }
        return self.render(request, context)

    def _address(self, query: Mapping[str, str]) -> str:
        return self.mount.address("desk", query=query)

    def _form(self, people: Sequence[str], user: Person, query: Mapping[str, str]) -> ReassignForm | None:
        if query["whose"] == "closed" or not policy().allows(user, _MAY_REASSIGN):
            return None
        return ReassignForm(people=people, initial={"query": urlencode(query)}, auto_id="tx_%s")

    def _read(self, request: HttpRequest, query: Mapping[str, str], number: str) -> _Desk:
        """Read a page of tasks and, for users who may view runs, the groups of all open ones."""
        user = user_of(request)
        tasks = self._tasks(request, query)
        page = min(max(int(number), 1), _LAST_PAGE) if number.isascii() and number.isdigit() and len(number) < 9 else 1
        rows = _fetch(tasks, page)
        # The tasks of this page have been decided since the page before it was shown.
        if not rows and page > 1:
            page, rows = 1, _fetch(tasks, 1)
        redacted = redact_tasks(rows[:_PAGE_SIZE], user)
        oldest: Sequence[HumanTask] = []
        if policy().allows(user, VIEW):
            oldest = oldest_open(tasks_of(self.mount.visible_runs(request)), MAX_COUNTED)
        # One look-up of people for both.
        operations.mark_nobody_left(*redacted, *oldest)
        return _Desk(
            tasks=redacted,
            number=page,
            has_next=len(rows) > _PAGE_SIZE,
            groups=desk_groups(oldest, timezone.now()),
            counted=len(oldest),
            people=people_asked([*oldest, *redacted]) if policy().allows(user, _MAY_REASSIGN) else [],
        )

    def _tasks(self, request: HttpRequest, query: Mapping[str, str]) -> HumanTaskQuerySet:
        """Return the tasks that the address asks for, the earliest due first; closed ones by their end."""
        user = user_of(request)
        order: tuple[Any, ...] = (F("due_at").asc(nulls_last=True), "opened_at", "pk")
        match query["whose"]:
            case "all":
                tasks = tasks_of(self.mount.visible_runs(request)).open()
            case "closed":
                tasks = tasks_of(self.mount.visible_runs(request)).exclude(closed_at=None)
                order = ("-closed_at", "pk")
            case "mine":
                tasks = claimed_by(inbox(user), user)
            case _:
                tasks = inbox(user)
        if query["due"] == "never":
            tasks = tasks.filter(due_at=None)
        elif query["due"] in _DAYS:
            tasks = tasks.filter(due_at__lte=timezone.now() + timedelta(days=_DAYS[query["due"]]))
        if query["workflow"]:
            tasks = tasks.filter(workflow=query["workflow"])
        if query["asked"]:
            tasks = tasks_asking(tasks, query["asked"])
        if query["q"]:
            tasks = tasks.filter(_search(query, user))
        return tasks.order_by(*order)

    def _group(self, group: DeskGroup, query: Mapping[str, str]) -> dict[str, Any]:
        filters = {"whose": "all", "asked": group.candidate}
        return {
            "name": candidate_names([group.candidate])[0],
            "count": group.count,
            "oldest": format_time(group.oldest),
            "overdue": group.overdue,
            "overdue_address": self._address({**filters, "due": "overdue"}),
            "escalated": group.escalated,
            "undecidable": group.undecidable,
            "address": self._address(filters),
            "is_current": group.candidate == query["asked"],
        }

    def _row(self, task: HumanTask, now: datetime) -> dict[str, Any]:
        is_claimed = task.claimed_until is not None and task.claimed_until > now
        return {
            "task": task,
            "title": shorten(task.title),
            "address": self.mount.task_address(str(task.pk)),
            "about": shorten(task.workflow_id),
            "under": " · ".join(filter(None, (task.workflow, step_name(task.key)))),
            "asks": shorten(", ".join(candidate_names(candidates_of(task)))) or "–",
            "is_undecidable": bool(task.nobody_left or task.absent),
            "is_escalated": task.is_open and task.escalated_at is not None,
            "state": "" if task.is_open else _ending_badge(task),
            "due": "–" if task.due_at is None else format_time(task.due_at),
            "is_late": task.is_open and task.due_at is not None and task.due_at <= now,
            "who": (task.claimed_by_name if is_claimed else "") if task.is_open else task.decided_by_name,
            "since": format_time(task.opened_at),
        }


def _query_of(parameters: Mapping[str, Any], user: Person) -> dict[str, str]:
    """Return the filters of an address. Users who may not view runs see their inbox only."""
    query = {name: str(parameters.get(name, "")).strip() for name in _FILTERS}
    views = [whose for whose, _label in _views_for(user)]
    if query["whose"] not in views:
        query["whose"] = views[0]
    # Databases refuse some characters in parameters.
    return {name: value if value.isprintable() else "" for name, value in query.items()}


def _views_for(user: Person) -> list[tuple[str, Any]]:
    sees_runs = policy().allows(user, VIEW)
    return [(whose, label) for whose, label in _VIEWS if sees_runs or whose in ("inbox", "mine")]


def _search(query: Mapping[str, str], user: Person) -> Q:
    """Return the condition of tasks whose id or title has the text.

    The title is left out for tasks outside of the inbox, because it is a payload, which could be guessed letter by
    letter. Users who may see payloads can search it everywhere.
    """
    condition = Q(workflow_id__startswith=query["q"])
    if query["whose"] in ("inbox", "mine") or policy().allows(user, VIEW_PAYLOAD):
        condition |= Q(title__icontains=query["q"])
    return condition


def _fetch(tasks: HumanTaskQuerySet, page: int) -> list[HumanTask]:
    """Return the tasks of a page, and one more if another page follows. All tasks are never counted."""
    first = (page - 1) * _PAGE_SIZE
    return [*tasks[first : first + _PAGE_SIZE + 1]]


def _ending_badge(task: HumanTask) -> SafeString:
    label = outcome_label(task.outcome) if task.ending == "decided" else task.get_ending_display()
    return badge(_ENDINGS.get(task.ending, "pending"), label)


# --- reassign ---------------------------------------------------------------------------------------------------------
#
# Give the selected tasks to another person.


class ReassignForm(ReasonForm):
    """The form that gives tasks to another person, one of the ``people`` whom open tasks ask."""

    to = forms.ChoiceField(label=gettext_lazy("To"), label_suffix="")
    query = forms.CharField(required=False, max_length=2_000, widget=forms.HiddenInput)
    field_order = ("to", "reason")

    def __init__(self, *args: Any, people: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["to"].choices = [("", _("choose a person…")), *((name, name) for name in people)]  # type: ignore[attr-defined] # a ChoiceField


class ReassignView(ConsoleView):
    """Gives the selected tasks to another person, who may decide them from then on. Each is an operation of its own."""

    template = ""
    methods = ("POST",)
    operation = None

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        user = user_of(request)
        if not policy().allows(user, _MAY_REASSIGN):
            refuse(
                request,
                Delegate.name,
                _("You may not reassign tasks: this requires the permission %(wanted)s.")
                % {"wanted": _MAY_REASSIGN.permission},
            )
        tasks = self._chosen(request)
        open_tasks = (
            oldest_open(tasks_of(self.mount.visible_runs(request)), MAX_COUNTED) if policy().allows(user, VIEW) else []
        )
        form = ReassignForm(request.POST, people=people_asked([*open_tasks, *tasks]))
        if not tasks:
            messages.warning(request, _("Select the tasks first."))
        elif not form.is_valid():
            messages.error(request, " ".join(str(error) for errors in form.errors.values() for error in errors))
        else:
            self._reassign(request, tasks, form.cleaned_data["to"], form.cleaned_data["reason"])
        return HttpResponseRedirect(self.mount.address("desk", query=_list_parameters(request.POST.get("query", ""))))

    def _chosen(self, request: HttpRequest) -> list[HumanTask]:
        """Return the selected tasks that the user may see, at most those of one page."""
        tasks = []
        for ref in dict.fromkeys(request.POST.getlist("task")[:_PAGE_SIZE]):
            try:
                tasks.append(find_task(ref, user_of(request)))
            except HumanTaskNotFound:
                messages.error(request, _("One of the tasks does not exist any more, or you may not see it."))
        return tasks

    def _reassign(self, request: HttpRequest, tasks: Sequence[HumanTask], name: str, reason: str) -> None:
        to, done = find_user(name), 0
        refusals: dict[str, None] = {}
        for task in tasks:
            try:
                reassign(task, to=to, reason=reason, by=actor_of(request))
            except TemporalexError as exc:
                refusals.setdefault(f"{exc.message[:1].upper()}{exc.message[1:]}.")
            else:
                done += 1
        if done:
            text = ngettext("%(count)d task was given to %(name)s.", "%(count)d tasks were given to %(name)s.", done)
            messages.success(request, text % {"count": done, "name": name})
        for refusal in refusals:
            messages.error(request, refusal)


def _list_parameters(query: str) -> dict[str, str]:
    """Return the parameters of the list in a query string, without others."""
    parameters = QueryDict(query[:2_000])
    return {name: parameters[name] for name in _FILTERS if parameters.get(name)}


# --- task -------------------------------------------------------------------------------------------------------------


class TaskPageView(ConsoleView):
    """The page of a human task, for projects that do not include the pages of human tasks."""

    template = ""
    methods = ("GET", "HEAD", "POST")
    section = "desk"
    operation = None

    def respond(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        key: UUID = kwargs["task"]
        try:
            task = find_task(key, user_of(request))
        except HumanTaskNotFound as exc:
            raise Http404(exc.message) from exc
        sees_run = policy().allows(user_of(request), VIEW.of(task.run))
        page = TaskPage(
            actor=actor_of(request),
            address=self.mount.address("task", key),
            inbox_address=self.mount.address("desk"),
            run_address=self.mount.run_address(task.run_id) if sees_run else "",
            base_template="temporalex_django/console/base.html",
            context={**self.frame(request), "title": _("Human task")},
        )
        return page.respond(request, task)
