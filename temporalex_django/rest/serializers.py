"""What comes in and what goes out. Payloads are any JSON value; a missing one is null."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any

from rest_framework import ISO_8601, serializers

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.names import quoted
from temporalex_django.models import BulkItem, BulkJob, Ending, FourEyesScope, HistoryEvent, Status
from temporalex_django.models.fields import UnreadablePayload

if TYPE_CHECKING:
    Base = serializers.Serializer[Any]
else:
    Base = serializers.Serializer  # generic in the stubs only

_MAX_NAME_LENGTH = 200
#: So many unknown fields are named.
_MAX_UNKNOWN_NAMES = 5


class Body(Base):
    """What somebody sends. A field that it does not have is refused: it would be a word that nobody hears."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and (unknown := [name for name in data if name not in self.fields]):
            hint = f"this body takes {', '.join(self.fields)}" if self.fields else "this body has none"
            quoted_names = ", ".join(quoted(name) for name in unknown[:_MAX_UNKNOWN_NAMES])
            raise serializers.ValidationError({"unknown": [f"no field {quoted_names}: {hint}"]})
        return super().to_internal_value(data)


def _payload_field() -> serializers.JSONField:
    return serializers.JSONField(required=False, allow_null=True, default=None)


def _message_id_field() -> serializers.CharField:
    return serializers.CharField(required=False, allow_null=True, default=None, trim_whitespace=False, allow_blank=True)


class StartBody(Body):
    """``id`` or ``value`` (for a class with ``unique``), or neither: then an id is made up.

    ``version``: of a dispatcher. ``search_attributes``: of those that the class declares, numbers with a fraction and
    times as texts; ``tags`` come beside those of the class.
    """

    workflow = serializers.CharField(max_length=_MAX_NAME_LENGTH)
    id = serializers.CharField(required=False, allow_null=True, default=None, trim_whitespace=False, allow_blank=True)
    value = serializers.CharField(
        required=False, allow_null=True, default=None, trim_whitespace=False, allow_blank=True
    )
    args = _payload_field()
    version = serializers.IntegerField(required=False, allow_null=True, default=None)
    search_attributes = serializers.DictField(
        required=False, allow_null=True, default=None, child=serializers.JSONField(allow_null=True)
    )
    tags = serializers.ListField(required=False, allow_null=True, default=None, child=serializers.CharField())


class SignalBody(Body):
    """``id``: the client's own, which makes it safe to send the same again."""

    payload = _payload_field()
    id = _message_id_field()


class UpdateBody(Body):
    """``id``: the client's own, which makes it safe to send the same again."""

    args = _payload_field()
    id = _message_id_field()


class QueryBody(Body):
    """One value as arguments."""

    args = _payload_field()


class ResumeBody(Body):
    """``event``, for the step with the key ``step`` where several wait for it; ``data`` goes into the context."""

    event = serializers.CharField(max_length=_MAX_NAME_LENGTH)
    step = serializers.CharField(required=False, allow_null=True, default=None, max_length=_MAX_NAME_LENGTH)
    data = _payload_field()  # type: ignore[assignment] # the name of a property of the base class that nobody reads here


class ReasonBody(Body):
    """Why, for the audit."""

    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=2000)


def _time_field(**options: Any) -> serializers.DateTimeField:
    """In ISO 8601 and UTC, whatever the host shows to his own clients."""
    return serializers.DateTimeField(format=ISO_8601, default_timezone=UTC, **options)


class AcceptsOut(Base):
    """Names of the messages that the run takes now."""

    signals = serializers.ListField(child=serializers.CharField())
    updates = serializers.ListField(child=serializers.CharField())


class SubjectOut(Base):
    """What the run was started for: ``type`` is ``app.model``."""

    type = serializers.CharField()
    id = serializers.CharField()


class SummaryOut(Base):
    """Where the run stands, in words for people, in lists at most 140 characters; ``state`` is for programs.

    ``trouble``: somebody should look at it.
    """

    state = serializers.CharField()
    text = serializers.CharField()
    trouble = serializers.BooleanField()


class SenderOut(Base):
    """A person: ``key`` is that of the user, ``name`` how he was called then."""

    key = serializers.CharField(allow_blank=True)
    name = serializers.CharField(allow_blank=True)


class PausedOut(Base):
    """When a run was paused, why and by whom; ``by`` null: by code."""

    since = _time_field()
    reason = serializers.CharField(allow_blank=True)
    by = SenderOut(allow_null=True)


class InstanceOut(Base):
    """A run in lists and alone: the fields of ``describe()`` and what the row says beside."""

    id = serializers.CharField(source="description.id")
    run_id = serializers.CharField(source="description.run_id")
    workflow = serializers.CharField(source="description.workflow")
    version = serializers.IntegerField(source="description.version")
    status = serializers.ChoiceField(source="description.status", choices=Status.values)
    summary = SummaryOut()
    blocked = serializers.JSONField(source="description.blocked", allow_null=True)
    paused = PausedOut(source="description.paused", allow_null=True)
    waiting_for = serializers.ListField(source="description.waiting_for", child=serializers.CharField())
    accepts = AcceptsOut(source="description.accepts")
    created_at = _time_field(source="run.created_at")
    started_at = _time_field(source="description.started_at", allow_null=True)
    closed_at = _time_field(source="description.closed_at", allow_null=True)
    queue = serializers.CharField(source="run.queue")
    tags = serializers.ListField(source="run.tags", child=serializers.CharField(), allow_null=True)
    search_attributes = serializers.DictField(child=serializers.JSONField())
    subject = SubjectOut(allow_null=True)
    parent_run_id = serializers.UUIDField(allow_null=True)
    url = serializers.CharField()


class FailureOut(Base):
    """Why the last attempt of an activity failed; the words need the permission to see payloads."""

    type = serializers.CharField()
    message = serializers.CharField()
    traceback = serializers.CharField(allow_null=True)
    at = _time_field()
    attempt = serializers.IntegerField()
    since = _time_field(allow_null=True)


class ActivityOut(Base):
    """An activity that has no result yet. ``max_attempts`` 0: without limit; ``next_try`` only while it is retrying."""

    seq = serializers.IntegerField()
    activity = serializers.CharField()
    state = serializers.CharField()
    queue = serializers.CharField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    scheduled_at = _time_field()
    started_at = _time_field(allow_null=True)
    due_at = _time_field()
    next_try = _time_field(allow_null=True)
    last_failure = FailureOut(allow_null=True)


class AskedOut(Base):
    """A human task that is open in a run; ``human-tasks/<id>/`` has the rest for who may see it himself."""

    id = serializers.UUIDField()
    key = serializers.CharField()
    title = serializers.CharField()
    outcomes = serializers.ListField(child=serializers.CharField())
    opened_at = _time_field()
    due_at = _time_field(allow_null=True)


class FailedMessageOut(Base):
    """A signal whose handler failed: ``messages/<id>/redeliver/`` and ``…/discard/`` take it by its id.

    The words of ``message`` need the permission to see payloads.
    """

    id = serializers.CharField()
    name = serializers.CharField()
    type = serializers.CharField()
    message = serializers.CharField()
    failed_at = _time_field(allow_null=True)


class InstanceDetail(InstanceOut):
    """A run alone: what it has open, too. ``human_tasks``: the first fifty.

    ``notice`` is in the answer of an operation: what to know of the run, such as that no worker has its code.
    """

    notice = serializers.CharField(required=False)
    failed_messages = FailedMessageOut(many=True, source="description.failed_messages")
    activities = ActivityOut(many=True, source="description.activities")
    human_tasks = AskedOut(many=True)


class RunNamesOut(Base):
    """How a run is found again: all that is told of what he did to whoever may not look at it (``view_instance``)."""

    id = serializers.CharField()
    run_id = serializers.CharField()
    url = serializers.CharField()


class RunOut(Base):
    """What is answered to whoever has done something to a run: one of ``variants``. It is described, and never made."""

    variants = (InstanceDetail, RunNamesOut)


class EventOut(Base):
    """An event of the history.

    What the codec cannot read is shown as such: the others of the page are not hurt by it.
    """

    seq = serializers.IntegerField()
    activation = serializers.IntegerField()
    kind = serializers.CharField()
    at = _time_field()
    attributes = serializers.SerializerMethodField()

    def get_attributes(self, event: HistoryEvent) -> Any:
        redactor: Redactor = self.context["view"]
        attributes = event.data
        if isinstance(attributes, UnreadablePayload):
            return _unreadable_payload(attributes, redactor)
        return redactor.redact_attributes(attributes, kind=event.kind)


class JobOut(Base):
    """A bulk job; ``left`` are runs that it has not come to. ``by`` is who started it, as he was called then."""

    id = serializers.UUIDField()
    action = serializers.CharField()
    reason = serializers.CharField(allow_blank=True)
    state = serializers.ChoiceField(choices=BulkJob.State.values)
    total = serializers.IntegerField()
    done = serializers.IntegerField()
    failed = serializers.IntegerField()
    left = serializers.IntegerField()
    by = serializers.CharField(source="actor_name", allow_blank=True)
    created_at = _time_field()
    finished_at = _time_field(allow_null=True)


class ItemOut(Base):
    """A run of a bulk job: ``outcome`` is open, done or failed; ``code`` and ``message`` say why it failed.

    ``part`` is the number of the activity or timer of the run, where the action is about one. ``tries``: how often the
    run was busy.
    """

    seq = serializers.IntegerField(source="pk")
    run_id = serializers.UUIDField()
    part = serializers.IntegerField(allow_null=True)
    outcome = serializers.SerializerMethodField()
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    tries = serializers.IntegerField()

    def get_outcome(self, item: BulkItem) -> str:
        return item.outcome or "open"


class HumanTaskOut(Base):
    """What a person is asked to decide; ``text`` says it in a sentence or two.

    ``asked``: who may decide, as words (``user:ann``, ``group:managers``, ``perm:shop.approve``), those among them to
    whom it was handed on.
    ``ending`` is what became of a closed one: decided (``outcome``), overdue, cancelled or run_closed.
    ``four_eyes`` is the scope in which somebody else has to decide: chain or run. ``nobody_left``: it shuts out
    everybody whom the task asks.
    """

    id = serializers.UUIDField()
    title = serializers.CharField()
    text = serializers.CharField()
    key = serializers.CharField()
    workflow = serializers.CharField()
    workflow_id = serializers.CharField()
    run_id = serializers.UUIDField()
    subject = SubjectOut(allow_null=True)
    outcomes = serializers.ListField(child=serializers.CharField())
    four_eyes = serializers.ChoiceField(choices=FourEyesScope.values, allow_blank=True)
    nobody_left = serializers.BooleanField()
    asked = serializers.ListField(child=serializers.CharField())
    requested_by = SenderOut(allow_null=True)
    opened_at = _time_field()
    due_at = _time_field(allow_null=True)
    reminded_at = _time_field(allow_null=True)
    escalated_at = _time_field(allow_null=True)
    claimed_by = SenderOut(allow_null=True)
    claimed_until = _time_field(allow_null=True)
    closed_at = _time_field(allow_null=True)
    ending = serializers.ChoiceField(choices=Ending.values, allow_null=True)
    outcome = serializers.CharField(allow_null=True)
    decided_by = SenderOut(allow_null=True)
    comment = serializers.CharField(allow_blank=True)
    url = serializers.CharField()


class FormOut(Base):
    """What ``data`` of a decision is to be, by ``kind``.

    none: nothing is asked; schema: what ``schema`` says; django: an object with these ``names``. ``digest`` goes with
    the decision as ``form``.
    """

    kind = serializers.ChoiceField(choices=("none", "schema", "django"))
    schema = serializers.JSONField(allow_null=True)
    names = serializers.ListField(child=serializers.CharField())
    digest = serializers.CharField(allow_blank=True)


class HumanTaskDetail(HumanTaskOut):
    """One alone. ``shows``: what people decide about, beside the title. ``form`` null: its code is not in this process.

    ``why_not``: why you may not decide it now.
    """

    shows = serializers.JSONField(allow_null=True)
    form = FormOut(allow_null=True)
    why_not = serializers.CharField(allow_null=True)


class TimelineOut(Base):
    """A thing that happened, or is happening: ``text`` is the row in words for people.

    ``first`` and ``last`` are the seqs of its events, ``activation`` is that of the first one; ``seq`` is the number of
    its command, by which operations name an activity or a timer. ``due`` is a timer's; ``who`` sent a message, or ended
    it by hand; ``key`` is the id of a child, the version of a run or the step of a decision.
    """

    kind = serializers.CharField()
    name = serializers.CharField(allow_blank=True)
    state = serializers.CharField()
    text = serializers.CharField()
    first = serializers.IntegerField(source="number")
    last = serializers.IntegerField()
    activation = serializers.IntegerField()
    seq = serializers.IntegerField(allow_null=True)
    began = _time_field()
    ended = _time_field(allow_null=True)
    due = _time_field(allow_null=True)
    attempts = serializers.IntegerField()
    who = serializers.CharField(allow_blank=True)
    error = serializers.CharField(allow_blank=True)
    key = serializers.CharField(allow_blank=True)


class WorkerOut(Base):
    """A process that advances runs and does activities. ``alive``: its lease has not run out.

    ``drained_at``: since when it takes nothing new; null: it takes work.
    """

    id = serializers.UUIDField()
    kind = serializers.CharField()
    host = serializers.CharField()
    pid = serializers.IntegerField()
    alive = serializers.BooleanField()
    queues = serializers.ListField(child=serializers.CharField())
    workflows = serializers.DictField(child=serializers.ListField(child=serializers.IntegerField()))
    activity_names = serializers.ListField(child=serializers.CharField())
    runs = serializers.IntegerField()
    activities = serializers.IntegerField()
    turns = serializers.IntegerField()
    clock_skew = serializers.FloatField()
    drained_at = _time_field(allow_null=True)
    started_at = _time_field()
    beat_at = _time_field()
    expires_at = _time_field()


class MessageOut(Base):
    """A signal, update or query that a class has. ``schema``: JSON Schema of its argument; null: any JSON."""

    name = serializers.CharField()
    schema = serializers.JSONField(allow_null=True)
    permission = serializers.CharField(allow_null=True)
    about = serializers.CharField(allow_blank=True)


class AcceptedOut(Base):
    """A message that a run takes now. ``why_not``: why whoever asks may not send it; null: he may."""

    kind = serializers.ChoiceField(choices=("signal", "update", "resume"))
    name = serializers.CharField()
    step = serializers.CharField(allow_null=True)
    schema = serializers.JSONField(allow_null=True)
    about = serializers.CharField(allow_blank=True)
    why_not = serializers.CharField(allow_null=True)


class OperationOut(Base):
    """What an operator does to a run, an activity or a timer of it. ``why_not``: why it cannot be done now."""

    name = serializers.CharField()
    of = serializers.ChoiceField(choices=("run", "activity", "timer"))
    effect = serializers.CharField()
    destructive = serializers.BooleanField()
    why_not = serializers.CharField(allow_null=True)


class TypeOut(Base):
    """A class of this process, in one of its versions. ``startable``: by whoever asks, from here."""

    workflow = serializers.CharField()
    version = serializers.IntegerField()
    startable = serializers.BooleanField()
    queue = serializers.CharField()
    about = serializers.CharField(allow_blank=True)
    unique = serializers.CharField(allow_null=True)
    args = serializers.JSONField(allow_null=True)
    signals = MessageOut(many=True)
    updates = MessageOut(many=True)
    queries = MessageOut(many=True)
    events = serializers.ListField(child=serializers.CharField())


class EndOut(Base):
    """How a run ended that did not complete. ``code``: ours; ``type`` of the exception, ``reason`` of the failure."""

    code = serializers.CharField()
    detail = serializers.CharField()
    type = serializers.CharField(allow_null=True)
    reason = serializers.JSONField(allow_null=True)


class ResultOut(Base):
    """Of a closed run: ``result``, or ``error``."""

    status = serializers.CharField()
    result = serializers.JSONField(required=False, allow_null=True)
    error = EndOut(required=False)


class NoResultOut(Base):
    """Of an open run."""

    status = serializers.CharField()
    blocked = serializers.JSONField(allow_null=True)
    detail = serializers.CharField()


class SignalOut(Base):
    """It is in the inbox of the run with that business id."""

    id = serializers.CharField()
    signal = serializers.CharField()


class UpdateOut(Base):
    """The response to the update of that id."""

    id = serializers.CharField()
    result = serializers.JSONField(allow_null=True)


class NoOutcomeOut(Base):
    """``accepted``: it is in the history, and only its outcome is missing."""

    id = serializers.CharField()
    accepted = serializers.BooleanField()
    detail = serializers.CharField()


class AnswerOut(Base):
    """The answer to a query."""

    result = serializers.JSONField(allow_null=True)


class ProblemOut(Base):
    """An error, after RFC 9457, with our code."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    instance = serializers.CharField()
    code = serializers.CharField()
    errors = serializers.DictField(required=False, child=serializers.JSONField())  # type: ignore[assignment] # as ``data``
    reason = serializers.JSONField(required=False)
    accepts = serializers.DictField(required=False, child=serializers.ListField(child=serializers.CharField()))
    known = serializers.ListField(required=False, child=serializers.CharField())


def _unreadable_payload(payload: UnreadablePayload, redactor: Redactor) -> Any:
    return {"unreadable": payload.error} if redactor.shows_payloads else redactor.redact_payload(None)
