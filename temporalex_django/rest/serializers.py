"""Bodies of requests and responses.

A payload is any JSON value; one that is missing is null. The docstrings of the classes describe the schemas in OpenAPI.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

import msgspec
from rest_framework import ISO_8601, serializers

from temporalex_django.access import policy
from temporalex_django.authoring import workflow as workflows
from temporalex_django.authoring.authorization import Person
from temporalex_django.authoring.backend import EndedAttempt, FailedMessage, OpenActivity
from temporalex_django.authoring.declared_messages import MessageKind, messages_of
from temporalex_django.authoring.redaction import Redactor
from temporalex_django.authoring.requests import OnClosed, OnConflict
from temporalex_django.authoring.run_columns import ColumnType, Place, columns_shown_in
from temporalex_django.authoring.workflow import Workflow
from temporalex_django.core.failures import AttemptFailure
from temporalex_django.core.names import TABLES, TEMPORAL, check_time, fit_note, quoted
from temporalex_django.core.payloads.codec import resolve_hints
from temporalex_django.graph.workflow import GraphWorkflow
from temporalex_django.models import BulkItem, BulkJob, Ending, FourEyesScope, HistoryEvent, Status
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.present.timeline import TimelineRow

# --- types ------------------------------------------------------------------------------------------------------------
#
# The workflow classes as REST describes them, with JSON Schemas of their arguments from the annotations.


def type_rows_of(name: str, user: Person) -> list[dict[str, Any]]:
    """Return the fields of ``TypeOut`` for each version of the workflow class ``name`` that this process has.

    ``startable`` is True if ``user`` may start it over REST. An unknown name gives an empty list.
    """
    return [_type_row(cls, user) for cls in workflows.concrete_classes() if cls.name == name]


def schema_of(annotation: Any) -> Any:
    """Return the JSON Schema of an annotation, or None if it allows anything or has no schema."""
    if annotation is Any or annotation is inspect.Parameter.empty:
        return None
    try:
        return msgspec.json.schema(annotation)
    # Types of the project without a schema still decode: clients just get no description of them.
    except TypeError:
        return None


def _type_row(cls: type[Workflow], user: Person) -> dict[str, Any]:
    return {
        "workflow": cls.name,
        "version": cls.version,
        "startable": policy().startable(user, cls),
        "queue": cls.task_queue,
        "about": inspect.cleandoc(cls.__doc__ or ""),
        "unique": None if cls.unique is None else cls.unique.key,
        "args": schema_of(cls.definition.args_type),
        "signals": [*_message_rows(cls, "signal")],
        "updates": [*_message_rows(cls, "update")],
        "queries": [*_query_rows(cls)],
        "events": sorted(_event_names(cls)),
    }


def _message_rows(cls: type[Workflow], kind: MessageKind) -> Iterator[dict[str, Any]]:
    for message in sorted(messages_of(cls).values(), key=lambda message: message.name):  # type: ignore[arg-type] # classes are
        if message.kind == kind:
            yield {
                "name": message.name,
                "schema": schema_of(message.args_type),
                "returns": schema_of(message.answer_type),
                "permission": message.permission,
                "about": message.about,
            }


def _query_rows(cls: type[Workflow]) -> Iterator[dict[str, Any]]:
    for name, fn in sorted(cls.queries().items()):
        yield {
            "name": name,
            "schema": schema_of(_query_argument_type(fn)),
            "returns": schema_of(resolve_hints(fn).get("return", Any)),
            "permission": None,
            "about": inspect.getdoc(fn) or "",
        }


def _query_argument_type(fn: Callable[..., Any]) -> Any:
    """Return the annotation of a query's argument, which comes after the state."""
    parameters = [*inspect.signature(fn).parameters]
    # A query without an argument takes null alone.
    if len(parameters) > 1:
        return resolve_hints(fn).get(parameters[1], Any)
    return type(None)


def _event_names(cls: type[Workflow]) -> set[str]:
    """Return the names of events that steps take from outside; none for a class that is not a graph."""
    if not issubclass(cls, GraphWorkflow):
        return set()
    return {event for step in cls.graph() if getattr(step, "waits", False) for event in step.events}


# --- output fields ----------------------------------------------------------------------------------------------------
#
# Fields of requests, and of responses that are made from descriptions: the columns of runs, and typed records.
#
# A record is a dataclass that handles return or commands print, so REST has the same fields with the same types.


if TYPE_CHECKING:
    Base = serializers.Serializer[Any]
else:
    Base = serializers.Serializer  # generic in the stubs only

#: A time in ISO 8601 and UTC, whatever format the project uses in its own views.
time_field = partial(serializers.DateTimeField, format=ISO_8601, default_timezone=UTC)


class Note(serializers.CharField):
    """An optional reason or comment of a person, made fit as everywhere: no text is refused for its characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, allow_blank=True, default="", **options)
        self.validators = []  # DRF refuses characters that ``fit_note`` removes

    def to_internal_value(self, data: Any) -> str:
        return fit_note(super().to_internal_value(data), label=str(self.field_name))


class AwareTimeField(serializers.DateTimeField):
    """Serializer field for a time in a request, in ISO 8601 with an offset from UTC.

    A time without the offset is invalid, because it could mean any. So is one outside of the years 2 to 9998.
    """

    default_error_messages: ClassVar[dict[str, Any]] = {
        "naive": "Write the time with its offset from UTC, such as 2026-11-27T09:00:00+01:00.",
        "year": "Write a time in the years 2 to 9998 in UTC.",
    }

    def enforce_timezone(self, value: datetime) -> datetime:
        if value.utcoffset() is None:
            self.fail("naive")
        try:
            return check_time(value, label="")
        except ValueError:
            self.fail("year")


def _texts_field(**options: Any) -> serializers.ListField:
    # A child belongs to one field, so each field gets a new one.
    return serializers.ListField(child=serializers.CharField(), **options)


#: The field of a column, by type.
_COLUMN_FIELDS: Mapping[ColumnType, Callable[..., Any]] = {
    ColumnType.TEXT: serializers.CharField,
    ColumnType.INTEGER: serializers.IntegerField,
    ColumnType.NUMBER: serializers.FloatField,
    ColumnType.TIME: time_field,
    ColumnType.KEY: serializers.CharField,
    ColumnType.TEXTS: _texts_field,
    ColumnType.ATTRIBUTES: lambda **options: serializers.DictField(child=serializers.JSONField(), **options),
    ColumnType.JSON: serializers.JSONField,
}
#: The field of an attribute of a record, by annotation.
_RECORD_FIELDS: Mapping[Any, Callable[..., Any]] = {
    str: serializers.CharField,
    int: serializers.IntegerField,
    float: serializers.FloatField,
    bool: serializers.BooleanField,
    datetime: time_field,
    Sequence[str]: _texts_field,
    Any: partial(serializers.JSONField, allow_null=True),
}


def run_column_fields() -> dict[str, Any]:
    """Return a serializer field for each column of runs that REST shows, by the name that the column has in REST.

    The fields read a ``RunRepresentation``: the stored value from its ``run``, or the value from its ``description``
    for a column that is redacted. The backend follows from a column.
    """
    column_fields: dict[str, Any] = {
        "backend": serializers.ChoiceField(source="run.backend", choices=[TABLES, TEMPORAL])
    }
    for column in columns_shown_in(Place.REST):
        source = f"run.{column.name}"
        if column.redact is not None:
            source = f"description.{column.output_name}"
        column_fields[column.output_name] = _COLUMN_FIELDS[column.type](source=source, allow_null=column.nullable)
    return column_fields


class RecordOut(Base):
    """Base class of the serializers of records: their fields are derived from a dataclass.

    ``record`` is the dataclass. ``names`` selects some of its fields; without it, all are used. A subclass can declare
    further fields.
    """

    record: ClassVar[type[Any]]
    names: ClassVar[Sequence[str]] = ()

    def get_fields(self) -> dict[str, Any]:
        """Return the fields of the dataclass ``record`` and those that the serializer declares.

        The annotations of the dataclass determine the types of its fields.
        """
        annotations = get_type_hints(self.record)
        record_fields = {name: _record_field(annotations[name]) for name in self.names or annotations}
        return {**record_fields, **super().get_fields()}


def _record_field(annotation: Any) -> Any:
    types = [member for member in get_args(annotation) if member is not type(None)]
    if isinstance(annotation, UnionType):
        return _RECORD_FIELDS[types[0]](allow_null=True)
    return _RECORD_FIELDS[annotation]()


class FailedAttemptOut(RecordOut):
    """An attempt of an activity that failed, timed out or was lost.

    You need the permission to see payloads to see its message and its traceback.
    """

    record = EndedAttempt


class FailureOut(RecordOut):
    """The failure of the last attempt of an activity.

    You need the permission to see payloads to see its texts.
    """

    record = AttemptFailure


class ProgressOut(Base):
    """The last progress that an activity reported: how much of the ``total`` is done.

    You need the permission to see payloads to see its text.
    """

    done = serializers.FloatField()
    total = serializers.FloatField()
    text = serializers.CharField(allow_blank=True)


class ActivityOut(RecordOut):
    """An activity that has no result yet.

    ``max_attempts`` is 0 if the number of attempts has no limit. ``next_try`` is set only between two attempts.
    """

    record = OpenActivity
    names = ("seq", "activity", "queue", "attempt", "max_attempts", "scheduled_at", "started_at", "due_at")
    state = serializers.CharField()
    next_try = time_field(allow_null=True)
    progress = ProgressOut(allow_null=True)
    last_failure = FailureOut(allow_null=True)


_MAX_NAME_LENGTH = 200
#: Largest number of unknown fields that an error names.
_MAX_UNKNOWN_NAMES = 5


class Body(Base):
    """Base class of the bodies of requests.

    A body with a field that it does not have is refused, because a misspelt field would be ignored silently.
    """

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and (unknown := [name for name in data if name not in self.fields]):
            hint = f"This body accepts {', '.join(self.fields)}." if self.fields else "This body has no fields."
            quoted_names = ", ".join(quoted(name) for name in unknown[:_MAX_UNKNOWN_NAMES])
            raise serializers.ValidationError({"unknown": [f"There is no field {quoted_names}. {hint}"]})
        return super().to_internal_value(data)


def _payload_field() -> serializers.JSONField:
    return serializers.JSONField(required=False, allow_null=True, default=None)


def _headers_field() -> serializers.DictField:
    # ``check_headers`` refuses what is no text, with an error that names the header.
    return serializers.DictField(
        required=False, allow_null=True, default=None, child=serializers.JSONField(allow_null=True)
    )


def _message_id_field() -> serializers.CharField:
    # Ids are compared byte by byte, so blanks are kept; ``check_message_id`` refuses bad ids with a clear error.
    return serializers.CharField(required=False, allow_null=True, default=None, trim_whitespace=False, allow_blank=True)


class StartBody(Body):
    """The body of a request that starts a run.

    Give ``id``, or ``value`` for a class with ``unique``. Without either, an id is generated. ``version`` selects the
    version of a versioned class. ``search_attributes`` are those that the class declares; write decimals and times as
    strings. ``tags`` are added to those of the class.

    The run begins at ``start_at``, or ``start_delay`` seconds after the start. If it has not begun by ``start_before``,
    it is timed out. Write times with their offset from UTC.

    ``on_conflict`` says what happens if an open run of the class has the id. ``on_closed`` says if the start is
    possible when a run with the id has ended. ``debounce`` is in seconds. ``throttle`` is a list of a count, a period
    in seconds and, if you like, a key. ``headers`` are texts by name, at most 4 KB in all.
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
    start_at = AwareTimeField(required=False, allow_null=True, default=None)
    start_delay = serializers.FloatField(required=False, allow_null=True, default=None)
    start_before = AwareTimeField(required=False, allow_null=True, default=None)
    on_conflict = serializers.ChoiceField(choices=get_args(OnConflict), required=False, default="fail")
    on_closed = serializers.ChoiceField(choices=get_args(OnClosed), required=False, default="allow")
    debounce = serializers.FloatField(required=False, allow_null=True, default=None)
    throttle = serializers.ListField(required=False, allow_null=True, default=None, child=serializers.JSONField())
    headers = _headers_field()


class SignalBody(Body):
    """The body of a request that sends a signal.

    ``id`` is a message id of your own. With it you can send the same signal again safely: it counts once. ``headers``
    are texts by name, at most 4 KB in all.
    """

    payload = _payload_field()
    id = _message_id_field()
    headers = _headers_field()


class UpdateBody(Body):
    """The body of a request that sends an update.

    ``args`` is its argument. ``id`` is a message id of your own. With it you can send the same update again safely: it
    counts once. ``headers`` are texts by name, at most 4 KB in all.
    """

    args = _payload_field()
    id = _message_id_field()
    headers = _headers_field()


class QueryBody(Body):
    """The body of a request that asks a run a query.

    ``args`` is one value, the argument of the query.
    """

    args = _payload_field()


class ResumeBody(Body):
    """The body of a request that gives a waiting step of a graph its event.

    ``step`` is the key of the step; give it if several steps wait for ``event``. ``data`` goes into the context of the
    graph.
    """

    event = serializers.CharField(max_length=_MAX_NAME_LENGTH)
    step = serializers.CharField(required=False, allow_null=True, default=None, max_length=_MAX_NAME_LENGTH)
    data = _payload_field()  # type: ignore[assignment] # a property of the base class that is not used here


class ReasonBody(Body):
    """The body of a request that performs an operation; the audit log stores the ``reason``."""

    reason = Note()


class AcceptsOut(Base):
    """The names of the messages that the run accepts now."""

    signals = serializers.ListField(child=serializers.CharField())
    updates = serializers.ListField(child=serializers.CharField())


class SubjectOut(Base):
    """The object that the run was started for.

    ``type`` is ``app.model``.
    """

    type = serializers.CharField()
    id = serializers.CharField()


class SummaryOut(Base):
    """The state of the run in words, for people; in lists at most 140 characters.

    ``state`` is for programs. ``trouble`` is true if a person should look at the run.
    """

    state = serializers.CharField()
    text = serializers.CharField()
    trouble = serializers.BooleanField()


class SenderOut(Base):
    """A person who did something to a run, such as pausing it.

    ``key`` is the key of the user, and ``name`` is the name that they had at that time.
    """

    key = serializers.CharField(allow_blank=True)
    name = serializers.CharField(allow_blank=True)


class PausedOut(Base):
    """The pause of a run: the time since which it is paused, the reason, and the person (null if code paused it)."""

    since = time_field()
    reason = serializers.CharField(allow_blank=True)
    by = SenderOut(allow_null=True)


class InstanceOut(Base):
    """A run, as lists show it."""

    status = serializers.ChoiceField(source="description.status", choices=Status.values)
    summary = SummaryOut()
    paused = PausedOut(source="description.paused", allow_null=True)
    waiting_for = serializers.ListField(source="description.waiting_for", child=serializers.CharField())
    accepts = AcceptsOut(source="description.accepts")
    search_attributes = serializers.DictField(child=serializers.JSONField())
    subject = SubjectOut(allow_null=True)
    parent_run_id = serializers.UUIDField(allow_null=True)
    url = serializers.CharField()

    def get_fields(self) -> dict[str, Any]:
        """Return the declared fields, and one for each other column of runs that REST shows."""
        return {**run_column_fields(), **super().get_fields()}


class AskedOut(Base):
    """An open human task of a run, in short.

    ``human-tasks/<id>/`` has all of its fields, if you may see it.
    """

    id = serializers.UUIDField()
    key = serializers.CharField()
    title = serializers.CharField()
    outcomes = serializers.ListField(child=serializers.CharField())
    opened_at = time_field()
    due_at = time_field(allow_null=True)


class FailedMessageOut(RecordOut):
    """A signal whose handler failed, so that a person has to deliver it again or discard it.

    ``messages/<id>/redeliver/`` and ``messages/<id>/discard/`` take its id. You need the permission to see payloads to
    see the text of ``message``.
    """

    record = FailedMessage


class InstanceDetail(InstanceOut):
    """One run, with its open activities, its failed messages and its first fifty open human tasks.

    ``attempts`` are the last attempts that failed, also of activities that have succeeded since.
    ``activities_error`` says why a cluster's activities are not known, and ``notice`` what you should know after an
    operation, such as that no worker has the code. ``headers`` are those of the start.
    """

    notice = serializers.CharField(required=False)
    headers = serializers.DictField(child=serializers.CharField(), source="description.headers")
    failed_messages = FailedMessageOut(many=True, source="description.failed_messages")
    activities = ActivityOut(many=True, source="description.activities")
    attempts = FailedAttemptOut(many=True, source="description.attempts")
    activities_error = serializers.CharField(source="description.activities_error", allow_null=True)
    human_tasks = AskedOut(many=True)


class RunNamesOut(Base):
    """The ids and the URL of a run: the response to an operation if you may not look at the run (``view_instance``)."""

    id = serializers.CharField()
    run_id = serializers.CharField()
    url = serializers.CharField()


class VariantsOut(Base):
    """Base class of the responses that have one of two forms: the whole object, or only its names.

    ``variants`` are the serializers of these forms.
    """

    # Only described, in OpenAPI: the view set chooses one of them when it responds.
    variants: ClassVar[tuple[type[Base], ...]] = ()


class RunOut(VariantsOut):
    """The response to an operation on a run: the run, or only its ids if you may not look at it."""

    variants = (InstanceDetail, RunNamesOut)


class EventOut(Base):
    """An event of the history of a run.

    If the codec cannot read its attributes, they are an object with ``unreadable``, and the other events are complete.
    """

    seq = serializers.IntegerField()
    activation = serializers.IntegerField()
    kind = serializers.CharField()
    at = time_field()
    attributes = serializers.SerializerMethodField()

    def get_attributes(self, event: HistoryEvent) -> Any:
        redactor: Redactor = self.context["view"]
        attributes = event.data
        # One event under a lost key must not make the whole page of the history fail.
        if isinstance(attributes, UnreadablePayload):
            failure = {"unreadable": attributes.error}
            return failure if redactor.shows_payloads else redactor.redact_payload(None)
        return redactor.redact_attributes(attributes, kind=event.kind)


class JobOut(Base):
    """A bulk job, which performs one operation on many runs.

    ``failed`` is the number of runs for which it was refused; for ``already_done`` of them because nothing was left to
    do. ``left`` is the number of runs that it has not reached yet. ``by`` is the person who started it, under the name
    that they had at that time.
    """

    id = serializers.UUIDField()
    action = serializers.CharField()
    reason = serializers.CharField(allow_blank=True)
    state = serializers.ChoiceField(choices=BulkJob.State.values)
    total = serializers.IntegerField()
    done = serializers.IntegerField()
    failed = serializers.IntegerField()
    already_done = serializers.IntegerField()
    left = serializers.IntegerField()
    by = serializers.CharField(source="actor_name", allow_blank=True)
    created_at = time_field()
    finished_at = time_field(allow_null=True)


class ItemOut(Base):
    """A run of a bulk job, with the outcome of the operation on it.

    ``outcome`` is open, done or failed; ``code`` and ``message`` say why it failed, and ``already_done`` is
    true if it failed because nothing was left to do. If the action is about activities
    or timers, ``part`` is the command number of one of them. ``tries`` counts how often the run was busy.
    """

    seq = serializers.IntegerField(source="pk")
    run_id = serializers.UUIDField()
    part = serializers.IntegerField(allow_null=True)
    outcome = serializers.SerializerMethodField()
    code = serializers.CharField(allow_blank=True)
    message = serializers.CharField(allow_blank=True)
    already_done = serializers.BooleanField()
    tries = serializers.IntegerField()

    def get_outcome(self, item: BulkItem) -> str:
        return item.outcome or "open"


class HumanTaskOut(Base):
    """A human task; ``text`` describes it in a sentence or two.

    ``asked`` lists who may decide, as words: ``user:ann``, ``group:managers``, ``perm:shop.approve``. It includes the
    people to whom the task was delegated. ``ending`` says what became of a closed task: decided (with ``outcome``),
    overdue, cancelled or run_closed. ``four_eyes`` is the scope in which a different person must decide: chain or run.
    ``nobody_left`` is true if this excludes everybody whom the task asks.
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
    opened_at = time_field()
    due_at = time_field(allow_null=True)
    reminded_at = time_field(allow_null=True)
    escalated_at = time_field(allow_null=True)
    claimed_by = SenderOut(allow_null=True)
    claimed_until = time_field(allow_null=True)
    closed_at = time_field(allow_null=True)
    ending = serializers.ChoiceField(choices=Ending.values, allow_null=True)
    outcome = serializers.CharField(allow_null=True)
    decided_by = SenderOut(allow_null=True)
    comment = serializers.CharField(allow_blank=True)
    url = serializers.CharField()


class FormOut(Base):
    """The form of a human task: it says what ``data`` of a decision must be.

    If ``kind`` is none, there must be no data; if schema, a value that matches the JSON Schema ``schema``; if django,
    an object with these ``names``. Send ``digest`` with the decision as ``form``.
    """

    kind = serializers.ChoiceField(choices=("none", "schema", "django"))
    schema = serializers.JSONField(allow_null=True)
    names = serializers.ListField(child=serializers.CharField())
    digest = serializers.CharField(allow_blank=True)


class HumanTaskDetail(HumanTaskOut):
    """One human task, with its form.

    ``shows`` is the value that people decide about, besides the title. ``form`` is null if this process does not have
    the code of the task. ``why_not`` says why you may not decide it now, and is null if you may.
    """

    shows = serializers.JSONField(allow_null=True)
    form = FormOut(allow_null=True)
    why_not = serializers.CharField(allow_null=True)


class TimelineOut(RecordOut):
    """A row of the timeline of a run: an activity, a timer, a child, a message or another thing that happened.

    ``text`` is the row in words. ``first`` and ``last`` are the ``seq`` of its first and last event, and ``activation``
    is the number of the activation of its first event. ``seq`` is its command number, by which operations name an
    activity or a timer. ``due`` is the due time of a timer. ``who`` is the person who sent the message, or ended the
    thing by hand. ``key`` is the id of a child, the version of a run, or the step of a decision.
    """

    record = TimelineRow
    names = (
        *("kind", "name", "state", "last", "activation", "seq", "began", "ended", "due"),
        *("attempts", "who", "error", "key"),
    )
    text = serializers.CharField()
    first = serializers.IntegerField(source="number")


class MessageOut(Base):
    """A signal, update or query that a class declares.

    ``schema`` is the JSON Schema of its argument, and ``returns`` that of its answer; null allows any JSON.
    """

    name = serializers.CharField()
    schema = serializers.JSONField(allow_null=True)
    returns = serializers.JSONField(allow_null=True)
    permission = serializers.CharField(allow_null=True)
    about = serializers.CharField(allow_blank=True)


class AcceptedOut(Base):
    """A message that a run accepts now.

    ``schema`` and ``returns`` are those of its declaration. ``why_not`` says why you may not send it, and is null if
    you may.
    """

    kind = serializers.ChoiceField(choices=("signal", "update", "resume"))
    name = serializers.CharField()
    step = serializers.CharField(allow_null=True)
    schema = serializers.JSONField(allow_null=True)
    returns = serializers.JSONField(allow_null=True)
    about = serializers.CharField(allow_blank=True)
    why_not = serializers.CharField(allow_null=True)


class OperationOut(Base):
    """An operation on a run, or on one of its activities or timers.

    ``why_not`` says why you cannot do it now, and is null if you can.
    """

    name = serializers.CharField()
    of = serializers.ChoiceField(choices=("run", "activity", "timer"))
    effect = serializers.CharField()
    destructive = serializers.BooleanField()
    why_not = serializers.CharField(allow_null=True)


class TypeOut(Base):
    """One version of a workflow class that this process has, with its input and its messages.

    ``startable`` is true if you may start it over REST.
    """

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
    """The error of a closed run that did not complete.

    ``code`` is the stable code of the error, ``type`` the type of the exception, and ``reason`` the reason of the
    failure.
    """

    code = serializers.CharField()
    detail = serializers.CharField()
    type = serializers.CharField(allow_null=True)
    reason = serializers.JSONField(allow_null=True)


class ResultOut(Base):
    """The response about the result of a closed run: its ``result``, or an ``error``."""

    status = serializers.CharField()
    result = serializers.JSONField(required=False, allow_null=True)
    error = EndOut(required=False)


class NoResultOut(Base):
    """The response about the result of a run that is still open.

    ``detail`` says what it is waiting for, and ``blocked`` what blocks it, or null.
    """

    status = serializers.CharField()
    blocked = serializers.JSONField(allow_null=True)
    detail = serializers.CharField()


class SignalOut(Base):
    """The response to a signal that was stored in the inbox of the run with this business id."""

    id = serializers.CharField()
    signal = serializers.CharField()


class UpdateOut(Base):
    """The response to an update that has completed.

    ``id`` is its message id, and ``result`` the value that its handler returned.
    """

    id = serializers.CharField()
    result = serializers.JSONField(allow_null=True)


class NoOutcomeOut(Base):
    """The response to an update that has no outcome yet.

    ``accepted`` is true if the update is in the history already.
    """

    id = serializers.CharField()
    accepted = serializers.BooleanField()
    detail = serializers.CharField()


class AnswerOut(Base):
    """The response to a query: ``result`` is the answer."""

    result = serializers.JSONField(allow_null=True)


class ProblemOut(Base):
    """An error as defined by RFC 9457, with a stable ``code``."""

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
