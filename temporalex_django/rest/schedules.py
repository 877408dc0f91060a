"""Schedules: list, create, change, pause, trigger, backfill and delete them, and read their slots."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar, get_args
from uuid import UUID

from django.db.models import QuerySet
from rest_framework import serializers as fields
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from temporalex_django import access
from temporalex_django.authoring.schedules.schedule import specs_in_words
from temporalex_django.authoring.schedules.slots import DEFAULT_TEMPLATE, DstFold, DstGap
from temporalex_django.errors import ScheduleNotFound
from temporalex_django.models import Schedule, ScheduleSlot
from temporalex_django.models.fields import UnreadablePayload
from temporalex_django.operations.base import storage
from temporalex_django.operations.schedules.definition import KEPT, parse_definition
from temporalex_django.operations.schedules.describe import (
    STATES,
    ScheduleDescription,
    SlotDescription,
    describe_schedule,
    describe_schedules,
    describe_slots,
    filter_schedules,
    preview_fires,
    slots_of,
)
from temporalex_django.operations.schedules.operations import (
    VIEW_SCHEDULE,
    BackfillPreview,
    BackfillSchedule,
    DeleteSchedule,
    PauseSchedule,
    ScheduleAction,
    StopBackfill,
    TriggerSchedule,
    UnpauseSchedule,
    find_manageable_schedule,
    find_schedule,
    preview_backfill,
    range_time,
    visible_schedules,
)
from temporalex_django.operations.schedules.save import SaveSchedule
from temporalex_django.rest import serializers
from temporalex_django.rest.base import (
    ContractViewSet,
    IdempotentViewSet,
    parse_schedule_if_match,
    schedule_etag,
    with_idempotency_key,
)
from temporalex_django.rest.contracts import PAGES
from temporalex_django.rest.lists import ByNamePagination, LatestSlotPagination
from temporalex_django.rest.requests import Contract, Parameter, SerializerType, with_contract
from temporalex_django.rest.serializers import Base, RecordOut, time_field

T = TypeVar("T")

_MAX_SPECS = 100
_LIST_FIRES, _DETAIL_FIRES = 5, 20
_CHOICES = {"owner": Schedule.Owner.values, "state": [*STATES]}
_OWNER = Parameter(name="owner", help="Enter code or people.")
_STATE = Parameter(name="state", help=f"Enter {', '.join([*STATES][:-1])} or {[*STATES][-1]}.")
_FILTERS = (
    _OWNER,
    _STATE,
    Parameter(name="workflow", help="Name of the workflow class."),
    Parameter(name="task", help="Path of the task."),
    Parameter(name="search", help="A part of the name."),
)
_RANGE = (
    Parameter(
        name="start",
        required=True,
        help="Start of the range, inclusive (ISO 8601; without an offset: in the zone of the schedule).",
    ),
    Parameter(name="end", required=True, help="End of the range, inclusive; as `start`."),
)


# -- bodies ------------------------------------------------------------------------------------------------------------


class SecondsField(fields.FloatField):
    """Serializer field for a number of seconds; a response shows a timedelta as seconds."""

    def to_internal_value(self, data: Any) -> float:
        try:
            return super().to_internal_value(data)
        except OverflowError:  # a whole number with hundreds of digits
            self.fail("invalid")

    def to_representation(self, value: Any) -> Any:
        return value.total_seconds() if isinstance(value, timedelta) else float(value)


class OneOrMoreField(fields.Field):  # type: ignore[type-arg] # generic in the stubs only
    """Serializer field for one value or a list of values of the same kind; the field ``item`` validates each."""

    def __init__(self, item: Any, schema: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.item = item
        # drf-spectacular reads this attribute of fields that it does not know.
        self._spectacular_annotation = {"field": {"oneOf": [schema, {"type": "array", "items": schema}]}}

    def to_internal_value(self, data: Any) -> list[Any]:
        values = data if isinstance(data, list) else [data]
        if not 1 <= len(values) <= _MAX_SPECS:
            raise fields.ValidationError(f"Enter 1 to {_MAX_SPECS} values.")
        return [self.item.run_validation(value) for value in values]

    def to_representation(self, value: Any) -> Any:
        return value


def _texts() -> OneOrMoreField:
    return OneOrMoreField(
        fields.CharField(max_length=200), {"type": "string"}, required=False, allow_null=True, default=None
    )


def _optional_text(default: str = "", **options: Any) -> fields.CharField:
    return fields.CharField(required=False, default=default, max_length=200, **options)


def _optional_time() -> fields.CharField:
    return fields.CharField(required=False, allow_null=True, default=None, max_length=64)


def _optional_number() -> fields.IntegerField:
    return fields.IntegerField(required=False, allow_null=True, default=None)


class ScheduleChangeBody(serializers.ReasonBody):
    """The body of a request that changes a schedule: its whole definition.

    It starts runs of the class ``workflow``, or enqueues the Django task at the path ``task``.

    The schedule fires by ``specs`` (objects with a ``type``), or by ``cron``, ``every`` (seconds) with ``offset``,
    ``calendar`` with ``holidays``, and ``at`` (ISO 8601). Several are a union. ``catch_up`` and ``jitter`` are seconds.
    Times without an offset are wall-clock times of the zone ``tz``. ``arguments_function`` and ``holidays`` name
    functions that code registers.

    ``args`` is the input of the runs, or the arguments of the task: a list, or an object of keyword arguments. If a
    change leaves it out, the stored input stays.
    """

    workflow = _optional_text()
    task = fields.CharField(required=False, default="", max_length=300)
    specs = fields.ListField(
        child=fields.DictField(child=fields.JSONField(allow_null=True)),
        required=False,
        allow_null=True,
        default=None,
        max_length=_MAX_SPECS,
    )
    cron = _texts()
    every = OneOrMoreField(SecondsField(), {"type": "number"}, required=False, allow_null=True, default=None)
    offset = SecondsField(required=False, allow_null=True, default=None)
    calendar = _texts()
    holidays = fields.CharField(required=False, allow_null=True, default=None, max_length=200)
    at = _texts()
    tz = _optional_text("UTC")
    args = fields.JSONField(required=False, allow_null=True)
    arguments_function = _optional_text(allow_blank=True)
    workflow_id = _optional_text(DEFAULT_TEMPLATE, trim_whitespace=False)
    overlap = fields.ChoiceField(choices=Schedule.OverlapPolicy.values, required=False, default="skip")
    catch_up = SecondsField(required=False, default=3600.0)
    jitter = SecondsField(required=False, allow_null=True, default=None)
    start = _optional_time()
    end = _optional_time()
    max_fires = _optional_number()
    pause_after = _optional_number()
    dst_gap = fields.ChoiceField(choices=get_args(DstGap), required=False, default="shift")
    dst_fold = fields.ChoiceField(choices=get_args(DstFold), required=False, default="first")


class ScheduleBody(ScheduleChangeBody):
    """The body of a request that creates a schedule: its name, and its definition.

    The definition has the fields of a change.
    """

    name = fields.CharField(max_length=100, trim_whitespace=False)


class BackfillBody(serializers.ReasonBody):
    """The body of a request that starts a backfill: a range of past times, whose slots start runs.

    ``start`` and ``end`` are ISO 8601 and inclusive; without an offset they are wall-clock times of the schedule's
    zone. At most ``per_minute`` runs are started a minute.
    """

    start = fields.CharField(max_length=64)
    end = fields.CharField(max_length=64)
    per_minute = fields.IntegerField(required=False, default=60)


# -- responses ---------------------------------------------------------------------------------------------------------


class SlotOut(RecordOut):
    """A slot of a schedule: a time at which it fires, with its outcome.

    ``cause`` is time, backfill or trigger. ``outcome`` is started, waiting, skipped, missed or failed, and ``reason``
    says why it was skipped or missed. A failed one has ``error_code`` and ``error``. ``run_id`` and ``status`` are
    those of the newest run, or null if there is none that you may see. For a task, ``task_id`` and ``status`` are those
    of the task. A slot may stand for ``count`` slots from ``at``
    to ``until``.
    """

    record = SlotDescription


class BackfillOut(Base):
    """A backfill that is under way.

    ``done`` of its ``total`` slots are handled. ``until`` is the time of its last slot, and ``next_at`` the time at
    which the next run is started.
    """

    total = fields.IntegerField()
    done = fields.IntegerField()
    until = time_field()
    next_at = time_field()
    actor = fields.CharField(allow_blank=True)


class ScheduleNamesOut(Base):
    """The name and the URL of a schedule.

    This is the response to an operation if you may not look at the schedule (``view_schedule``).
    """

    name = fields.CharField()
    url = fields.CharField()


class _PayloadOut(fields.JSONField):
    """The input of a schedule; ``{"unreadable": …}`` for one that cannot be read."""

    def to_representation(self, value: Any) -> Any:
        if isinstance(value, UnreadablePayload):
            return {"unreadable": value.error}
        return super().to_representation(value)


class ScheduleDetail(RecordOut):
    """A schedule, with its time table, its state and its last slots.

    ``description`` is its time table in words. ``state`` is active, paused, gone (the code no longer declares it) or
    ended (no slot will come). ``next_fires`` are its next slots, and ``slots`` the last ten, newest first. ``args`` is
    null in lists, and if you may not see payloads. ``error`` says why its slots cannot be computed. ``catch_up`` and
    ``jitter`` are seconds.
    """

    record = ScheduleDescription
    names = (
        *("name", "workflow", "task", "owner", "module", "description", "state"),
        *("tz", "dst_gap", "dst_fold", "start", "end"),
        *("arguments_function", "workflow_id", "overlap", "max_fires", "pause_after"),
        *("fires", "failures", "waiting"),
        *("paused_at", "pause_reason", "paused_by", "gone_since", "error", "editor", "created_at", "changed_at"),
    )

    specs = fields.ListField(child=fields.DictField(child=fields.JSONField(allow_null=True)))
    args = _PayloadOut(allow_null=True)
    catch_up = SecondsField()
    jitter = SecondsField(allow_null=True)
    next_fires = fields.ListField(child=time_field())
    slots = SlotOut(many=True)
    backfill = BackfillOut(allow_null=True)
    url = fields.SerializerMethodField()

    def get_url(self, schedule: ScheduleDescription) -> str:
        url: str = self.context["url_of"](schedule.name)
        return url


class ScheduleOut(serializers.VariantsOut):
    """The response to an operation on a schedule: the schedule, or only its names if you may not look at it."""

    variants = (ScheduleDetail, ScheduleNamesOut)


class SchedulePreviewOut(Base):
    """The preview of a schedule that is not saved.

    ``description`` is its time table in words, and ``next_fires`` are the next times at which it would fire.
    """

    description = fields.CharField()
    next_fires = fields.ListField(child=time_field())


class BackfillPreviewOut(RecordOut):
    """The preview of a backfill: the number of ``slots`` in the range, and the number of runs that it would start.

    ``started`` is the number of slots that have started already. ``first`` and ``last`` are the times of the first and
    the last slot.
    """

    record = BackfillPreview
    to_start = fields.IntegerField()


# -- contracts and views -----------------------------------------------------------------------------------------------


def _view_contract(summary: str, answer: SerializerType, *query: Parameter, several: bool = False) -> Contract:
    return Contract(
        operation=VIEW_SCHEDULE.action,
        permission="view_schedule",
        summary=summary,
        query=query,
        answers={200: answer},
        several=several,
    )


def _action_contract(
    action: type[ScheduleAction[Any]],
    summary: str,
    answers: dict[int, SerializerType | None],
    *query: Parameter,
    body: SerializerType | None = serializers.ReasonBody,
    **options: Any,
) -> Contract:
    """Return a contract; ``answers`` are serializers by status, ``options`` further fields of ``Contract``."""
    return Contract(
        operation=action.name,
        permission=action.permission,
        summary=summary,
        query=query,
        body=body,
        answers=answers,
        scope="act",
        **{"keyed": True, **options},
    )


class ScheduleViewSet(IdempotentViewSet):
    """The REST addresses of the schedules that the caller may see: read, create, change, delete and operate them."""

    pagination_class = ByNamePagination

    def get_queryset(self) -> QuerySet[Schedule]:
        return visible_schedules(self._user, alias=storage().alias)

    @with_contract(_view_contract("Schedules, by name", ScheduleDetail, *_FILTERS, *PAGES, several=True))
    def list(self, request: Request) -> Response:
        """Return the schedules by name. Five reads.

        Each has the next five times at which it fires, and its last ten slots.
        """
        filters = {parameter.name: self._text_parameter(parameter.name) for parameter in _FILTERS}
        for parameter in (_OWNER, _STATE):
            # A misspelt value must not silently list nothing.
            if filters[parameter.name] and filters[parameter.name] not in _CHOICES[parameter.name]:
                raise ValidationError({parameter.name: [parameter.help]})
        page = self.paginate_queryset(filter_schedules(self.get_queryset(), **filters)) or ()
        descriptions = describe_schedules([*page], self._user, alias=storage().alias, fires=_LIST_FIRES)
        return self._page_response([self._rendered(description) for description in descriptions])

    @with_contract(_action_contract(SaveSchedule, "Create a schedule", {201: ScheduleOut}, body=ScheduleBody))
    @with_idempotency_key
    def create(self, request: Request) -> Response:
        """Create a schedule. Returns status 201, or 409 if a schedule with that name exists already."""
        values = self._body()
        reason = values.pop("reason")
        action = SaveSchedule(parse_definition(values), create=True, reason=reason, by=self._actor())
        return self._schedule_response(self._run_once(action.execute, lambda row: (_key_of(row), True)), status=201)

    @with_contract(_view_contract("One schedule", ScheduleDetail))
    def retrieve(self, request: Request, schedule: str) -> Response:
        """Return a schedule with the next twenty times at which it fires.

        The response has an ``ETag``, which a change takes as ``If-Match``.
        """
        return self._detail_response(find_schedule(schedule, self._user, alias=storage().alias))

    @with_contract(
        _action_contract(SaveSchedule, "Change it", {200: ScheduleOut}, body=ScheduleChangeBody, matched=True)
    )
    @with_idempotency_key
    def change(self, request: Request, schedule: str) -> Response:
        """Replace the definition of a schedule. Returns status 200, or 409 for a schedule that is declared in code.

        Fields that the body leaves out get their defaults, except ``args``.
        """
        values = {"args": KEPT, **self._body(), "name": schedule}
        reason = values.pop("reason")
        header = request.headers.get("If-Match")
        expected = None if header is None else parse_schedule_if_match(header)
        return self._run_action(
            SaveSchedule(parse_definition(values), create=False, expected=expected, reason=reason, by=self._actor())
        )

    @with_contract(
        _action_contract(
            DeleteSchedule,
            "Delete it",
            {204: None},
            Parameter(name="reason", help="The reason, for the audit log."),
            body=None,
        )
    )
    @with_idempotency_key
    def destroy(self, request: Request, schedule: str) -> Response:
        """Delete a schedule and its slots; its runs stay. Returns status 204, or 409 if it is declared in code."""
        key = _key_of(find_manageable_schedule(schedule, self._user, alias=storage().alias))
        action = DeleteSchedule(schedule, reason=self._text_parameter("reason"), by=self._actor())
        self._run_once(action.execute, lambda _: (key, False))
        return Response(status=204)

    @with_contract(_action_contract(PauseSchedule, "Pause it", {200: ScheduleOut}))
    @with_idempotency_key
    def pause(self, request: Request, schedule: str) -> Response:
        """Pause a schedule. Returns status 200. Until the pause ends, slots that become due start no run."""
        return self._run_action(PauseSchedule(schedule, by=self._actor(), **self._body()))

    @with_contract(_action_contract(UnpauseSchedule, "End its pause", {200: ScheduleOut}))
    @with_idempotency_key
    def unpause(self, request: Request, schedule: str) -> Response:
        """Unpause a schedule, so that it fires again. Returns status 200."""
        return self._run_action(UnpauseSchedule(schedule, by=self._actor(), **self._body()))

    @with_contract(_action_contract(TriggerSchedule, "Fire it now", {200: SlotOut}))
    @with_idempotency_key
    def trigger(self, request: Request, schedule: str) -> Response:
        """Fire a schedule now. Returns status 200 with the slot, whatever its outcome is."""
        action = TriggerSchedule(schedule, by=self._actor(), **self._body())
        return self._slot_response(
            self._run_once(lambda: _slot_row(schedule, action), lambda slot: (_key_of(slot), False))
        )

    @with_contract(_view_contract("What a backfill would start", BackfillPreviewOut, *_RANGE))
    def preview_backfill(self, request: Request, schedule: str) -> Response:
        """Return how many slots of a schedule are in a range of past times, and how many a backfill would start.

        Nothing is written.
        """
        row = find_schedule(schedule, self._user, alias=storage().alias)
        times = {}
        for parameter in _RANGE:
            text = self._text_parameter(parameter.name)
            if not text:
                raise ValidationError({parameter.name: [parameter.help]})
            times[parameter.name] = range_time(row, text, parameter.name)
        return Response(BackfillPreviewOut(preview_backfill(row, **times, alias=storage().alias)).data)

    @with_contract(
        _action_contract(BackfillSchedule, "Start the slots of a past range", {200: ScheduleOut}, body=BackfillBody)
    )
    @with_idempotency_key
    def backfill(self, request: Request, schedule: str) -> Response:
        """Start a backfill; workers start its runs. Returns status 200, or 409 while another backfill is under way."""
        row = find_manageable_schedule(schedule, self._user, alias=storage().alias)
        body = self._body()
        arguments = {**body, **{name: range_time(row, body[name], name) for name in ("start", "end")}}
        return self._run_action(BackfillSchedule(schedule, by=self._actor(), **arguments))

    @with_contract(_action_contract(StopBackfill, "Stop its backfill", {200: ScheduleOut}))
    @with_idempotency_key
    def stop_backfill(self, request: Request, schedule: str) -> Response:
        """Stop the backfill of a schedule. Returns status 200, or 409 if none is under way.

        Slots that already wait for an earlier run to end are still started.
        """
        return self._run_action(StopBackfill(schedule, by=self._actor(), **self._body()))

    @with_contract(
        _action_contract(
            SaveSchedule,
            "What a definition means, without saving it",
            {200: SchedulePreviewOut},
            body=ScheduleBody,
            keyed=False,
        )
    )
    def preview(self, request: Request) -> Response:
        """Check the definition of a schedule without saving it; return it in words with its next times.

        These are the next twenty times at which it would fire.
        """
        values = self._body()
        del values["reason"]
        definition, now = parse_definition(values), storage().now()
        definition.check(now)
        preview = {
            "description": specs_in_words(definition.specs, definition.tz),
            "next_fires": preview_fires(definition, now, _DETAIL_FIRES),
        }
        return Response(SchedulePreviewOut(preview).data)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _run_action(self, action: ScheduleAction[Any]) -> Response:
        """Execute an operation, and return the response with the schedule as it is afterwards."""

        def execute() -> Schedule:
            action.execute()
            return Schedule.objects.using(storage().alias).get(name=action.schedule_name)

        return self._schedule_response(self._run_once(execute, lambda row: (_key_of(row), False)))

    def repeat_response(self, object_id: UUID, *, is_new: bool, **names: Any) -> Response:
        if self.action == "destroy":
            return Response(status=204)
        alias = storage().alias
        schedules = access.schedules_for(self._user, alias=alias)
        if self.action == "trigger":
            slots = ScheduleSlot.objects.using(alias).filter(schedule__in=schedules.order_by().values("pk"))
            return self._slot_response(_require(slots.filter(pk=object_id.int).first()))
        row = _require(schedules.filter(pk=object_id.int).first())
        return self._schedule_response(row, status=201 if is_new else 200)

    def _schedule_response(self, row: Schedule, *, status: int = 200) -> Response:
        url = self._url_of(row.name)
        if access.policy().allows(self._user, VIEW_SCHEDULE):
            response = self._detail_response(row)
        else:
            response = Response(ScheduleNamesOut({"name": row.name, "url": url}).data)
        response.status_code = status
        if status == 201:
            response["Location"] = url
        return response

    def _detail_response(self, row: Schedule) -> Response:
        body = self._rendered(describe_schedule(row, self._actor(), alias=storage().alias, fires=_DETAIL_FIRES))
        return Response(body, headers={"ETag": schedule_etag(row.changed_at, body)})

    def _rendered(self, description: ScheduleDescription) -> dict[str, Any]:
        return dict(ScheduleDetail(description, context={"url_of": self._url_of}).data)

    def _url_of(self, name: str) -> str:
        return self._url_for("schedule", schedule=name)

    def _slot_response(self, slot: ScheduleSlot) -> Response:
        (description,) = describe_slots([slot], self._user, alias=storage().alias)
        return Response(SlotOut(description).data)


class ScheduleSlotViewSet(ContractViewSet):
    """The REST address of the slots of a schedule, which are the times at which it fires or has fired."""

    pagination_class = LatestSlotPagination

    @with_contract(_view_contract("Its slots, latest first", SlotOut, *PAGES, several=True))
    def slots(self, request: Request, schedule: str) -> Response:
        """Return the slots of a schedule with their outcomes, the latest first. Four reads."""
        alias = storage().alias
        row = find_schedule(schedule, self._user, alias=alias)
        page = self.paginate_queryset(slots_of(row, alias=alias)) or ()
        return self._page_response([*SlotOut(describe_slots(page, self._user, alias=alias), many=True).data])


def _key_of(row: Schedule | ScheduleSlot) -> UUID:
    """Return the primary key as a UUID, by which ``DuplicateRequest`` names objects."""
    return UUID(int=row.pk)


def _require(row: T | None) -> T:
    if row is None:
        raise ScheduleNotFound
    return row


def _slot_row(schedule: str, action: TriggerSchedule) -> ScheduleSlot:
    """Trigger the schedule, and return the row of the slot that it made."""
    slot = action.execute()
    return ScheduleSlot.objects.using(storage().alias).get(schedule__name=schedule, at=slot.at)
