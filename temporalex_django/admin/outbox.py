"""Outgoing messages in the admin: a list, whose actions send dead letters again and drop messages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from temporalex_django.access import Operation, policy
from temporalex_django.admin.base import ReadOnlyAdmin, actor_of, user_of
from temporalex_django.admin.formatting import format_time
from temporalex_django.authoring.authorization import APP
from temporalex_django.errors import ActionNotPermitted, TemporalexError
from temporalex_django.models import Outbox
from temporalex_django.operations.base import storage
from temporalex_django.operations.fleet.outgoing import DropOutgoing, SendAgain, describe_outgoing, outgoing_messages


class DeadLetterFilter(admin.SimpleListFilter):
    """The list filter that separates dead letters from messages that wait to be sent."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("waiting", _("Waiting")), ("dead", _("Dead letters"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Outbox]) -> QuerySet[Outbox]:
        if self.value() is None:
            return queryset
        return queryset.filter(failed__isnull=self.value() == "waiting")


class _OutboxList(ChangeList):
    """The list of outgoing messages, each with its problem as this user may see it."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = rows = [*self.result_list]
        for row, message in zip(rows, describe_outgoing(rows, user_of(request)), strict=True):
            row.problem_text = ": ".join(filter(None, (message.code, message.error)))


@admin.register(Outbox)
class OutboxAdmin(ReadOnlyAdmin[Outbox]):
    """The admin list of outgoing messages. Their bodies are payloads, and are not shown."""

    list_display = ("kind", "destination", "run_name", "sender", "waiting_since", "tries", "problem")
    list_display_links = None
    list_filter = (DeadLetterFilter, "destination", "kind")
    ordering = ("id",)
    actions = ("send_again", "drop")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Outbox]:
        """Return the messages about runs that the user may see."""
        return outgoing_messages(storage().alias, user_of(request))

    @admin.display(description=_("run"))
    def run_name(self, message: Any) -> str:
        return f"{message.workflow or ''} {message.workflow_id or ''}".strip()

    @admin.display(description=_("since"), ordering="created_at")
    def waiting_since(self, message: Outbox) -> SafeString:
        return format_time(message.created_at)

    @admin.display(description=_("problem"))
    def problem(self, message: Any) -> str:
        """Return why the message is a dead letter, or what its last try has met."""
        return str(message.problem_text)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _OutboxList

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Return True if the user may send messages again and drop them."""
        operation = Operation(action=SendAgain.name, permission=f"{APP}.{SendAgain.permission}")
        return policy().allows(user_of(request), operation)

    @admin.action(description=_("Send again"), permissions=["operate"])
    def send_again(self, request: HttpRequest, queryset: QuerySet[Outbox]) -> None:
        """Send the selected dead letters again."""
        self._execute(request, queryset, SendAgain)

    @admin.action(description=_("Drop"), permissions=["operate"])
    def drop(self, request: HttpRequest, queryset: QuerySet[Outbox]) -> None:
        """Drop the selected messages."""
        self._execute(request, queryset, DropOutgoing)

    def _execute(self, request: HttpRequest, queryset: QuerySet[Outbox], action: type[SendAgain]) -> None:
        done = 0
        for pk in queryset.values_list("pk", flat=True):
            try:
                action(pk, by=actor_of(request)).execute()
            except ActionNotPermitted as exc:
                raise PermissionDenied(str(exc)) from exc
            except TemporalexError as exc:
                messages.error(request, exc.message)
            else:
                done += 1
        if done:
            texts = ngettext("%(count)d message was processed.", "%(count)d messages were processed.", done)
            messages.success(request, texts % {"count": done})
