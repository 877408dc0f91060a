"""The messages that a run accepts now, as forms on its admin page and on the page to which they are posted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _

from temporalex_django.admin.base import actor_of, posted_data, user_of
from temporalex_django.admin.formatting import format_payload, shorten
from temporalex_django.admin.run.action_views import Confirmation, RunActionView, superseded_error
from temporalex_django.authoring.authorization import Person
from temporalex_django.errors import UpdateTimeout
from temporalex_django.forms.payload_forms import PayloadForm
from temporalex_django.models import Instance
from temporalex_django.operations.read.describe import AvailableMessage, available_messages
from temporalex_django.operations.runs.messages import SendSignal
from temporalex_django.operations.runs.resume import Resume
from temporalex_django.operations.runs.update import SendUpdate

#: Seconds that a page waits for the answer to an update.
_ANSWER_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePanel:
    """A message that a run accepts now, as the admin page of the run shows it: a button, and a form for the payload.

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
    """The admin page that sends a message to a run: a GET asks for the payload, a POST sends the message.

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
            effect=message.about.split("\n\n", 1)[0] or _effect_texts()[message.kind],
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
            Resume(target, event=name, step=step, data=form.payload, timeout=_ANSWER_TIMEOUT, by=actor).execute()
            return _("Decided: “%(name)s”.") % {"name": name}
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


def _effect_texts() -> dict[str, str]:
    return {
        "signal": _("The run reads this message in its next turn. You do not get an answer."),
        "update": _(
            "The run either accepts this message and answers it, or rejects it with a reason and changes nothing."
        ),
        "resume": _("The step that is waiting for this event continues. Your decision is recorded with your name."),
    }
