"""The page of a human task, which the pages of a project and the console show. It works without JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from temporalex_django.access import policy
from temporalex_django.authoring import authorization
from temporalex_django.errors import ActionNotPermitted, HumanTaskNotFound, TemporalexError
from temporalex_django.forms.human_task_form import DecisionForm, DelegationForm, outcome_label
from temporalex_django.models import HumanTask
from temporalex_django.operations.base import Actor
from temporalex_django.operations.human_tasks import operations
from temporalex_django.operations.human_tasks.inbox import candidates_of, find_task, redact_tasks
from temporalex_django.operations.human_tasks.operations import Claim, Decide, Delegate, Release
from temporalex_django.present.human_tasks import candidate_names, step_name

_ACTIONS: dict[str, type[Claim | Release]] = {"claim": Claim, "release": Release}
_DONE = {action.name: action.done for action in (Claim, Release, Delegate, Decide)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """The place at which the page of a human task is shown.

    - ``actor``: the user who looks at the task and acts.
    - ``address``: the URL of the page.
    - ``inbox_address`` and ``run_address``: the URLs of the list of tasks and of the run; empty without such a page.
    - ``delegates``: False where nobody delegates, such as behind a link in mail.
    - ``base_template`` and ``context``: the frame of the page, and the values that it needs.
    """

    actor: Actor
    address: str
    inbox_address: str = ""
    run_address: str = ""
    delegates: bool = True
    base_template: str = "temporalex_django/pages/base.html"
    context: Mapping[str, Any] = field(default_factory=dict)

    def respond(self, request: HttpRequest, task: HumanTask) -> HttpResponse:
        """Show the task, or claim, release, delegate or decide it on a POST.

        Redirects after a POST that was done. If it was refused, the page has the reason, and the status 409 or 403.
        """
        post = _Post()
        if request.method == "POST":
            try:
                post = self._handle(request, task)
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except HumanTaskNotFound as exc:
                raise Http404(exc.message) from exc
            # Usually somebody else was quicker: the page then shows what they decided.
            except TemporalexError as exc:
                post = _Post(message=exc.message, status=409)
            if post.done:
                return HttpResponseRedirect(f"{self.address}?done={post.done}")
            # Read the row again: the action may have failed because of a state that this object does not have yet.
            task = find_task(task.pk, None)
        return self._render(request, task, post)

    def _handle(self, request: HttpRequest, task: HumanTask) -> _Post:
        """Do what was posted. Raises ``TemporalexError`` if it is refused."""
        name = request.POST.get("do", "")
        if (action := _ACTIONS.get(name)) is not None:
            action(task, by=self.actor).execute()
            return _Post(done=action.name)
        if name == Delegate.name and self.delegates:
            return self._delegate(request, task)
        form = DecisionForm(request.POST, task=task)
        return _Post(done=Decide.name) if form.decide(by=self.actor) else _Post(form=form, status=409)

    def _delegate(self, request: HttpRequest, task: HumanTask) -> _Post:
        form = DelegationForm(request.POST, auto_id="delegation_%s")
        if not form.is_valid():
            return _Post(delegation=form, status=409)
        try:
            Delegate(task, to=form.cleaned_data["to"], reason=form.cleaned_data["reason"], by=self.actor).execute()
        # Delegate answers an unknown name like a missing permission. If the user may decide the task, the name may be
        # a typing error: show it at the field.
        except ActionNotPermitted as exc:
            assert self.actor.user is not None
            if operations.why_not(task, self.actor.user) is not None:
                raise
            form.add_error("to", str(exc))
            return _Post(delegation=form, status=403)
        return _Post(done=Delegate.name)

    def _render(self, request: HttpRequest, task: HumanTask, post: _Post) -> HttpResponse:
        user, form = self.actor.user, post.form
        assert user is not None
        (redacted_task,) = redact_tasks(operations.mark_nobody_left(task), user)
        why_not = operations.why_not(task, user)
        can_delegate = self.delegates and why_not is None and policy().may_delegate(user, task, user)
        if why_not is None and form is None:
            try:
                form = DecisionForm(task=task)
            # The form class of the project may not be installed in this process; show the task without a form.
            except TemporalexError as exc:
                why_not = exc.message
        context: dict[str, Any] = {
            **self.context,
            "base_template": self.base_template,
            "task": redacted_task,
            "said": post.message,
            "done": _DONE.get(request.GET.get("done", "")),
            "text": operations.task_sentence(redacted_task, subject=operations.subject_text(task.run)),
            "shows": operations.value_as_json(redacted_task),
            "asks": ", ".join(candidate_names(candidates_of(task))),
            "step": step_name(task.key),
            "handed_on": task.delegated,
            "run_address": self.run_address,
            "why_not": why_not,
            "form": None if why_not else form,
            "delegation": (post.delegation or DelegationForm(auto_id="delegation_%s")) if can_delegate else None,
            "claimed": operations.is_claimed(task) and task.claimed_by_key == authorization.sender_key(user),
            "outcome": outcome_label(task.outcome) if task.outcome else "",
            "user_name": str(user),
            "inbox_address": self.inbox_address,
        }
        return render(request, "temporalex_django/pages/task.html", context, status=post.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Post:
    """The outcome of a POST: the name of the operation that was done, or why it was not, with the form to correct."""

    done: str = ""
    message: str = ""
    form: DecisionForm | None = None
    delegation: forms.Form | None = None
    status: int = 200
