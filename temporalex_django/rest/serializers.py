"""What comes in and what goes out. Payloads are any JSON value; a missing one is null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rest_framework import serializers

from temporalex_django.authoring.viewing import View
from temporalex_django.models import HistoryEvent
from temporalex_django.models.fields import Payload

if TYPE_CHECKING:
    Base = serializers.Serializer[Any]
else:
    Base = serializers.Serializer  # generic in the stubs only

_LONGEST = 200


def _payload() -> serializers.JSONField:
    return serializers.JSONField(required=False, allow_null=True, default=None)


def _message_id() -> serializers.CharField:
    return serializers.CharField(required=False, allow_null=True, default=None, trim_whitespace=False, allow_blank=True)


class StartBody(Base):
    """``id`` or ``value`` (for a class with ``unique``), or neither: then an id is made up.

    ``version``: of a dispatcher.
    """

    workflow = serializers.CharField(max_length=_LONGEST)
    id = serializers.CharField(required=False, allow_null=True, default=None, trim_whitespace=False, allow_blank=True)
    value = serializers.CharField(
        required=False, allow_null=True, default=None, trim_whitespace=False, allow_blank=True
    )
    args = _payload()
    version = serializers.IntegerField(required=False, allow_null=True, default=None)


class SignalBody(Base):
    """``id``: the client's own, which makes it safe to send the same again."""

    payload = _payload()
    id = _message_id()


class UpdateBody(Base):
    """``id``: the client's own, which makes it safe to send the same again."""

    args = _payload()
    id = _message_id()


class QueryBody(Base):
    """One value as arguments."""

    args = _payload()


class ResumeBody(Base):
    """``event``, for the step with the key ``step`` where several wait for it; ``data`` goes into the context."""

    event = serializers.CharField(max_length=_LONGEST)
    step = serializers.CharField(required=False, allow_null=True, default=None, max_length=_LONGEST)
    data = _payload()  # type: ignore[assignment] # the name of a property of the base class that nobody reads here


class ReasonBody(Base):
    """Why, for the audit."""

    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=2000)


class InstanceOut(Base):
    """A run in lists and alone: the fields of ``describe()`` and what the row says beside."""

    id = serializers.CharField(source="described.id")
    run_id = serializers.CharField(source="described.run_id")
    workflow = serializers.CharField(source="described.workflow")
    version = serializers.IntegerField(source="described.version")
    status = serializers.CharField(source="described.status")
    blocked = serializers.JSONField(source="described.blocked")
    waiting_for = serializers.JSONField(source="described.waiting_for")
    accepts = serializers.JSONField(source="described.accepts")
    created_at = serializers.DateTimeField(source="run.created_at")
    started_at = serializers.DateTimeField(source="described.started_at")
    closed_at = serializers.DateTimeField(source="described.closed_at")
    queue = serializers.CharField(source="run.queue")
    tags = serializers.JSONField(source="run.tags")
    url = serializers.CharField()


class FailureOut(Base):
    """Why the last attempt of an activity failed; the words need the permission to see payloads."""

    type = serializers.CharField()
    message = serializers.CharField()
    traceback = serializers.CharField(allow_null=True)
    at = serializers.DateTimeField()
    attempt = serializers.IntegerField()
    since = serializers.DateTimeField(allow_null=True)


class ActivityOut(Base):
    """An activity that has no result yet. ``max_attempts`` 0: without limit; ``next_try`` only while it is retrying."""

    seq = serializers.IntegerField()
    activity = serializers.CharField()
    state = serializers.CharField()
    queue = serializers.CharField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    scheduled_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    due_at = serializers.DateTimeField()
    next_try = serializers.DateTimeField(allow_null=True)
    last_failure = FailureOut(allow_null=True)


class InstanceDetail(InstanceOut):
    """A run alone: what it has open, too."""

    activities = ActivityOut(many=True, source="described.activities")


class EventOut(Base):
    """An event of the history.

    What the codec cannot read is shown as such: the others of the page are not hurt by it.
    """

    seq = serializers.IntegerField()
    activation = serializers.IntegerField()
    kind = serializers.CharField()
    at = serializers.DateTimeField()
    attributes = serializers.SerializerMethodField()

    def get_attributes(self, event: HistoryEvent) -> Any:
        data = event.data
        view: View = self.context["view"]
        if isinstance(data, Payload):
            return {"unreadable": data.error} if view.open else view.value(None)
        return view.attributes(data, kind=event.kind)
