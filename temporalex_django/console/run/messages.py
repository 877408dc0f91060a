"""Messages and queries of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from temporalex_django.access import Operation, policy
from temporalex_django.authoring.authorization import APP, Person
from temporalex_django.console.actions import superseded_error
from temporalex_django.console.base import actor_of, format_payload, posted_data, refuse, shorten, user_of
from temporalex_django.console.run.views import Confirmation, RunActionView
from temporalex_django.errors import ActionNotPermitted, TemporalexError, UpdateTimeout
from temporalex_django.forms.payload_forms import PayloadForm
from temporalex_django.models import Instance
from temporalex_django.operations.read.describe import AvailableMessage, available_messages, available_queries
from temporalex_django.operations.runs.messages import Query, SendSignal
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.update import SendUpdate

# --- messages ---------------------------------------------------------------------------------------------------------
#
# The messages that a run accepts now, as forms on its page and on the page to which they are posted.


#: Seconds that a page waits for the answer to an update.
_ANSWER_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePanel:
    """A message that a run accepts now, as the page of the run shows it: a button, and a form for the payload.

    ``form`` is None if the user may not send the message; ``why_not`` then says why. ``address`` is the URL to which
    the form is posted.
    """

    message: AvailableMessage
    label: str
    address: str
    form: PayloadForm | None
    why_not: str | None

    @property
    def can_decide(self) -> bool:
        """True if the message is an event for a waiting step of a graph that the user may send.

        The page then says that the run waits for this user.
        """
        return self.message.kind == "resume" and self.why_not is None


def message_panels(run: Instance, user: Person, *, address: str) -> list[MessagePanel]:
    """Return a ``MessagePanel`` for each message that the run accepts now. No query.

    ``address`` is the URL of the page to which the forms are posted.
    """
    panels = []
    for number, message in enumerate(available_messages(run)):
        why_not = message.why_not(user, run)
        form = None
        if why_not is None:
            # Several forms are on one page: with one auto_id, their elements would share ids.
            form = PayloadForm(annotation=message.args_type, auto_id=f"message{number}_%s")
        panels.append(
            MessagePanel(
                message=message,
                label=message_label(message),
                address=f"{address}?{message_query(message)}",
                form=form,
                why_not=why_not,
            )
        )
    return panels


def message_query(message: AvailableMessage) -> str:
    """Return the query string that names the message in the URL of ``SendMessageView``."""
    params = {"kind": message.kind, "name": message.name}
    return urlencode({**params, "step": message.step} if message.step is not None else params)


def message_label(message: AvailableMessage) -> str:
    """Return the label of the message's button: its name as words, and the step if there is one."""
    words = message.name.replace("_", " ")
    if message.step is not None:
        return f"{words} ({message.step})"
    return words


class SendMessageView(RunActionView):
    """The page that sends a message to a run: a GET asks for the payload, a POST sends the message.

    The URL names the message. It is sent only if the run still accepts it.
    """

    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        kind, name, step = (request.GET.get(key) for key in ("kind", "name", "step"))
        if kind not in ("signal", "update", "resume") or not name:
            raise Http404
        # The run may have moved on since its page was shown: the page then says so instead of a 404.
        message, reason, permission_error = self._find_message(request, run), None, None
        if message is None:
            reason = superseded_error(run) or (
                _("The run is closed and accepts no more messages.")
                if not run.is_open
                else _("The run does not accept “%(name)s” now.") % {"name": name}
            )
            message = AvailableMessage(kind=kind, name=name, step=step)  # type: ignore[arg-type] # looked at above
        else:
            permission_error = message.why_not(user_of(request), run)
        return Confirmation(
            heading=_("Send “%(name)s”") % {"name": message_label(message)},
            effect=message.about.split("\n\n", 1)[0] or _effect_text(message),
            button=_("Send"),
            why_not=reason,
            permission_error=permission_error,
            action=message.kind,
            message=message.name,
        )

    def form(self, request: HttpRequest, run: Instance) -> PayloadForm:
        message = self._find_message(request, run)
        annotation = Any if message is None else message.args_type
        return PayloadForm(posted_data(request), annotation=annotation)

    def act(self, request: HttpRequest, run: Instance, form: PayloadForm) -> str:
        kind, name, step = (request.GET.get(key) for key in ("kind", "name", "step"))
        assert name is not None
        target, actor, token = self.find_target(request, run), actor_of(request), form.cleaned_data["token"]
        # The token is the id of the message, so a form that is posted twice sends one message (see decision 25).
        if kind == "signal":
            SendSignal(target, signal=name, payload=form.payload, id=token, exact=True, by=actor).execute()
            return _("“%(name)s” was sent. The run will read it in its next turn.") % {"name": name}
        if kind == "resume":
            message = self._find_message(request, run)
            Resume(target, event=name, step=step, data=form.payload, timeout=_ANSWER_TIMEOUT, by=actor).execute()
            if message is None or message.is_decision:
                return _("Decided: “%(name)s”.") % {"name": name}
            return _("“%(name)s” was sent to the step that waits for it.") % {"name": name}
        update = SendUpdate(
            target, update=name, args=form.payload, id=token, timeout=_ANSWER_TIMEOUT, by=actor, exact=True
        )
        try:
            answer = update.execute()
        except UpdateTimeout as exc:
            # With another code (busy, unknown), the update is not stored, or not for sure: show the error itself.
            if exc.code != UpdateTimeout.code:
                raise
            return _("“%(name)s” was sent but has no answer yet. The answer will appear in the messages below.") % {
                "name": name
            }
        if answer is None:
            return _("“%(name)s” is done.") % {"name": name}
        return _("“%(name)s” is done: %(answer)s") % {"name": name, "answer": shorten(format_payload(answer).preview)}

    def get_success_url(self, request: HttpRequest, run: Instance, form: Any = None) -> str:
        """Return the URL of the messages of the run, which show the outcome."""
        del form
        return self.mount.address("run_part", run.pk, "messages")

    def _find_message(self, request: HttpRequest, run: Instance) -> AvailableMessage | None:
        # An earlier run of the chain would answer with what its own class accepted.
        if superseded_error(run) is not None:
            return None
        message_key = tuple(request.GET.get(key) for key in ("kind", "name", "step"))
        return next(
            (
                message
                for message in available_messages(run)
                if (message.kind, message.name, message.step) == message_key
            ),
            None,
        )


def _effect_text(message: AvailableMessage) -> str:
    """Return the sentences about the effect of a message that has no description of its own."""
    match message.kind:
        case "signal":
            return _("The run reads this message in its next turn. You do not get an answer.")
        case "update":
            return _(
                "The run either accepts this message and answers it, or rejects it with a reason and changes nothing."
            )
        case _ if message.is_decision:
            return _("The step that is waiting for this event continues. Your decision is recorded with your name.")
        case _:
            return _("The step that is waiting for this event continues. The history records your name.")


# --- queries ----------------------------------------------------------------------------------------------------------
#
# Queries: a user asks a run, whose published state answers.


_PERMISSION = f"{APP}.query_instance"


def query_links(run: Instance, user: Person, *, address: str) -> list[dict[str, str]]:
    """Return the name and the URL of each query that the class of the run answers, as dicts for the template.

    The list is empty if the user may not query the run. ``address`` is the URL of the page that asks a query.
    """
    if _permission_error(user, run) is not None:
        return []
    return [{"name": name, "address": f"{address}?{urlencode({'name': name})}"} for name in available_queries(run)]


class QueryView(RunActionView):
    """The page that asks a run a query, which the URL names: a POST asks it and shows the answer."""

    def confirmation(self, request: HttpRequest, run: Instance) -> Confirmation:
        name = self._query_name(request, run)
        return Confirmation(
            heading=_("Query “%(name)s”") % {"name": name},
            effect=_("The query is answered from the published state of the run. Nothing is changed."),
            button=_("Run query"),
            permission_error=_permission_error(user_of(request), run),
            action=Query.name,
            message=name,
        )

    def form(self, request: HttpRequest, run: Instance) -> PayloadForm:
        posted = posted_data(request)
        return PayloadForm(posted, annotation=available_queries(run)[self._query_name(request, run)])

    def act(self, request: HttpRequest, run: Instance, form: PayloadForm) -> Any:
        query = Query(
            self.find_target(request, run),
            query=self._query_name(request, run),
            args=form.payload,
            by=actor_of(request),
        )
        return query.execute()

    def handle_post(self, request: HttpRequest, run: Instance, confirmation: Confirmation, form: Any) -> HttpResponse:
        """Ask the query and render the page with the answer, without a redirect: the answer is not stored."""
        # No redirect, because the answer is not stored, and the published state may change at any time.
        if confirmation.permission_error is not None:
            refuse(request, confirmation.action, confirmation.permission_error, run=run, message=confirmation.message)
        if not form.is_valid():
            return self.render_page(request, run, confirmation, form)
        try:
            answer = self.act(request, run, form)
        except ActionNotPermitted as exc:
            raise PermissionDenied(str(exc)) from exc
        except TemporalexError as exc:
            form.add_error(None, exc.message)
            return self.render_page(request, run, confirmation, form, status=409)
        return self.render_page(request, run, confirmation, form, answer=format_payload(answer))

    def _query_name(self, request: HttpRequest, run: Instance) -> str:
        name = request.GET.get("name", "")
        # Only declared queries: the name comes from the address, and a query is a method of the class.
        if name not in available_queries(run):
            raise Http404
        return name


def _permission_error(user: Person, run: Instance) -> str | None:
    if policy().allows(user, Operation(action="query", permission=_PERMISSION).of(run)):
        return None
    return _("You may not query this run: this requires the permission %(wanted)s.") % {"wanted": _PERMISSION}
