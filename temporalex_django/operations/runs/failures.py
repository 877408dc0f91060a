"""Operations on what failed in a run: its activities and messages."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from temporalex_django.conf import get_settings
from temporalex_django.core.payloads.codec import digest
from temporalex_django.db.graph_storage import TaskSource
from temporalex_django.db.inserts import notify_on_commit
from temporalex_django.db.messages.inbox import HandledMessage, discard, failed_count, failed_messages, redeliver
from temporalex_django.engine import operator_overrides
from temporalex_django.engine.operator_overrides import (
    immediate_retry,
    input_digests,
    operator_completion,
    operator_failure,
    retry_atomic,
    with_edited_input,
)
from temporalex_django.models import ActivityTask, Instance, Message
from temporalex_django.operations.runs.operator_action import ActivityAction, Input, OperatorRunAction

# --- failed message ---------------------------------------------------------------------------------------------------
#
# Operations on failed messages: signals whose handler failed.


class FailedMessageAction(OperatorRunAction[None]):
    """Base class of ``Redeliver`` and ``Discard``, which act on one failed message of a run or on all of them.

    The operation runs in the caller's transaction. It locks the chain (see ``OperatorRunAction.lock_run``) and the rows
    of the messages. It raises ``ActionNotPossible`` if the run has no failed message, or none with the given id. The
    audit log records the id of each message and the digest of its payload.
    """

    inputs: ClassVar[tuple[Input, ...]] = (
        Input(
            name="message",
            kind=str,
            label=_("Message"),
            help=_("The id of one failed message. Without it, the action applies to all failed messages of the run."),
        ),
    )

    @classmethod
    def why_not(cls, run: Instance, *, seq: int | None = None) -> str | None:
        if reason := super().why_not(run, seq=seq):
            return reason
        return None if failed_count(run) else gettext(operator_overrides.NO_FAILED_MESSAGE)

    @abstractmethod
    def act(self, message_id: str) -> HandledMessage | None:
        """Redeliver or discard the failed message with that id.

        Returns the id, name and digest that the audit log records, or None if the chain has no such failed message.
        """

    def perform(self) -> None:
        alias = self.storage.alias
        with self.storage.transaction():
            run = self.lock_run()
            chosen_id = self.input_values.get("message")
            message_ids = (
                [chosen_id]
                if chosen_id
                else [str(row.request_id) for row in failed_messages(run.chain_id, alias=alias)]
            )
            for message_id in message_ids:
                handled = self.act(message_id)
                if handled is None:
                    reason = gettext(operator_overrides.NO_SUCH_FAILED_MESSAGE).format(id=message_id)
                    self.refuse(reason, closed=False)
                else:
                    self.record(
                        self.target.audit_subject,
                        reason=self.reason,
                        message=handled.id,
                        signal=handled.name,
                        digest=handled.digest,
                    )


class Redeliver(FailedMessageAction):
    """Operation that delivers failed messages to the run again, with the same payload and id.

    A failed message is a signal whose handler failed. ``message`` is the id of one; without it, all of the run are
    delivered. They come after the messages that wait already. A paused run receives them when it is unpaused. Locks the
    chain, in the caller's transaction. Raises ``ActionNotPossible`` if there is no such message.
    """

    name: ClassVar[str] = "redeliver"
    cluster: ClassVar[str | Promise] = "asks"
    label: ClassVar[Promise] = _("Deliver again")
    summary: ClassVar[Promise] = _("Deliver failed messages again.")
    effect: ClassVar[Promise] = _(
        "The run receives the message again, with the same payload, after the messages that are already waiting."
    )
    done: ClassVar[Promise] = _("The run receives the message in its next turn.")

    def act(self, message_id: str) -> HandledMessage | None:
        if (remote := self.remote) is not None:
            return remote.redeliver(self, message_id)
        notify_on_commit(alias=self.storage.alias, queues=[self.target.queue])
        return redeliver(self.target.chain_id, message_id, alias=self.storage.alias)

    def perform_remotely(self) -> None:
        self.perform()


class Discard(FailedMessageAction):
    """Operation that discards failed messages, so that their signals are never delivered again.

    A failed message is a signal whose handler failed. ``message`` is the id of one; without it, all of the run are
    discarded. A signal that is sent again with the id of a discarded message is not delivered either. The rows stay. A
    closed run can have its failed messages discarded as well. Locks the chain, in the caller's transaction. Raises
    ``ActionNotPossible`` if there is no such message.
    """

    name: ClassVar[str] = "discard"
    cluster: ClassVar[str | Promise] = "rows only"
    label: ClassVar[Promise] = _("Discard message")
    summary: ClassVar[Promise] = _("Discard failed messages.")
    effect: ClassVar[Promise] = _(
        "The run never receives a discarded message, even if it is sent again with the same id. The message stays in the list of messages."
    )
    done: ClassVar[Promise] = _("The message was discarded.")
    destructive: ClassVar[bool] = True

    def is_done(self, run: Instance) -> bool:
        discarded = Message.objects.using(self.storage.alias).filter(chain_id=run.chain_id, outcome_status="discarded")
        return not failed_count(run) and discarded.exists()

    def act(self, message_id: str) -> HandledMessage | None:
        return discard(self.target.chain_id, message_id, alias=self.storage.alias)


# --- retry activity ---------------------------------------------------------------------------------------------------
#
# Retry a failed activity now.


class RetryActivity(ActivityAction):
    """Operation that makes a failed activity due at once, although its retry policy would let it wait.

    With ``input``, the activity is tried with that input, under a new idempotency key; the history then says so with
    the result. Earlier attempts stay counted. Raises ``PayloadError`` for an input that does not fit the activity. Runs
    in the caller's transaction and locks the chain; see ``OperatorRunAction.lock_run``.
    """

    name: ClassVar[str] = "retry_activity"
    cluster: ClassVar[str | Promise] = "at once"
    label: ClassVar[Promise] = _("Retry now")
    summary: ClassVar[Promise] = _("Retry an activity now.")
    effect: ClassVar[Promise] = _("The activity is retried at once, before its next attempt is due.")
    done: ClassVar[Promise] = _("The activity will be retried now.")
    needs_worker: ClassVar[bool] = True
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(
            name="input",
            kind=object,
            label=_("New input"),
            help=_("A list of arguments, or an object of arguments by name. If empty, the activity keeps its input."),
            edits=True,
        ),
    )

    def is_done(self, run: Instance) -> bool:
        assert self.seq is not None
        tasks = ActivityTask.objects.using(self.storage.alias).filter(run_id=run.pk, seq=self.seq)
        return run.is_open and tasks.exclude(owner=None).exists()

    @classmethod
    def none_possible_text(cls) -> Any:
        return _("no activity is failing")

    def perform(self) -> None:
        with self.storage.transaction():
            run, digests = self.lock_run(), {}
            task = self.load_task(run)
            if "input" in self.input_values:
                args, kwargs = self.find_activity(task).parse_edited_input(self.input_values["input"], task.args)
                digests["input"] = input_digests(task.args, task.kwargs, {"args": args, "kwargs": kwargs})
                task = with_edited_input(task, args, kwargs, sender=self.by.sender)
                self.storage.edit_task(task)
            now = self.storage.now()
            self.finish_task(immediate_retry(task, now=now), run, **digests)
            # No worker claims an atomic activity: turns of the run execute it, so the run itself must be due.
            if task.atomic:
                self.storage.write([retry_atomic(run, now=now)])


# --- complete activity ------------------------------------------------------------------------------------------------
#
# End an activity by hand: with a result, or with a failure.


class CompleteActivity(ActivityAction):
    """Operation that ends an activity with a result that an operator gives.

    The history gets an ordinary ``ActivityCompleted``, which names the operator in ``by``. The result of an attempt
    that is under way is dropped.

    ``result`` is the input. Raises ``PayloadError`` if it does not fit the annotation of the activity. For a step of a
    graph it is ``{"event": name, "data": …}``. Runs in the caller's transaction and locks the chain of the run.
    """

    name: ClassVar[str] = "complete_activity"
    cluster: ClassVar[str | Promise] = "at once"
    label: ClassVar[Promise] = _("Complete by hand")
    summary: ClassVar[Promise] = _("Complete an activity by hand.")
    effect: ClassVar[Promise] = _(
        "The run continues as if the activity had returned this result. The result of a running attempt is ignored."
    )
    done: ClassVar[Promise] = _("The activity was completed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(selector, required=selector.name == "activity") for selector in ActivityAction.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (Input(name="result", kind=object, label=_("Result")),)

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            task = self.load_task(run)
            # Check the value here, where the operator can correct it; later it would block or fail the run.
            result = self.find_activity(task).encode_manual_result(
                self.input_values.get("result"), task.args, TaskSource(task)
            )
            limit = get_settings().MAX_PAYLOAD_BYTES
            completion = operator_completion(task, result, sender=self.by.sender, limit=limit)
            self.finish_task(completion, run, digest=digest(result))


class FailActivity(ActivityAction):
    """Operation that ends an activity with a failure that an operator gives, although it could be retried.

    ``message`` and ``type`` describe the error. The history gets an ordinary ``ActivityFailed``, which names the
    operator in ``by``. The result of an attempt that is under way is dropped. Runs in the caller's transaction and
    locks the chain of the run.
    """

    name: ClassVar[str] = "fail_activity"
    cluster: ClassVar[str | Promise] = "at once"
    label: ClassVar[Promise] = _("Fail by hand")
    summary: ClassVar[Promise] = _("Fail an activity by hand.")
    effect: ClassVar[Promise] = _(
        "The activity fails for good with this error, and the run receives it. The result of a "
        "running attempt is ignored."
    )
    done: ClassVar[Promise] = _("The activity was marked as failed.")
    destructive: ClassVar[bool] = True
    selectors: ClassVar[tuple[Input, ...]] = tuple(
        replace(selector, required=selector.name == "activity") for selector in ActivityAction.selectors
    )
    inputs: ClassVar[tuple[Input, ...]] = (
        Input(name="message", kind=str, label=_("Message"), required=True),
        Input(name="type", kind=str, label=_("Type of the error"), help=_("The default is FailedByHand.")),
    )

    def perform(self) -> None:
        with self.storage.transaction():
            run = self.lock_run()
            error_type, message = self.input_values.get("type") or "FailedByHand", self.input_values["message"]
            result = operator_failure(self.load_task(run), type=error_type, message=message, sender=self.by.sender)
            self.finish_task(result, run, digest=digest(message))
