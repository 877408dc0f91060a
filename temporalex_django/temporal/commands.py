"""Commands of the executor, translated to commands of the SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final

from temporalio.api.common.v1 import RetryPolicy
from temporalio.bridge.proto import child_workflow
from temporalio.bridge.proto.workflow_commands import ActivityCancellationType, WorkflowCommand

from temporalex_django.authoring.activity_options import RetryPolicy as OwnRetryPolicy
from temporalex_django.core.history.activation import DeliveryRecord, RunInfo
from temporalex_django.core.history.events import Command
from temporalex_django.temporal import names
from temporalex_django.temporal.failures import write_failure
from temporalex_django.temporal.payloads import Payloads
from temporalex_django.temporal.start_facts import StartFacts

#: Time limit of an attempt of an activity that has none: the server demands one.
ACTIVITY_LIMIT: Final = timedelta(days=10)
#: Time limit between two heartbeats of an activity that has none. The wrapper of activities sends them by itself.
HEARTBEAT: Final = timedelta(seconds=30)
#: The server fires no timer earlier.
_SHORTEST_TIMER: Final = timedelta(milliseconds=1)
_PARENT_CLOSE: Final = {
    "terminate": child_workflow.ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE,
    "request_cancel": child_workflow.ParentClosePolicy.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
    "abandon": child_workflow.ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandWriter:
    """Translates the commands of one run to commands of the SDK.

    ``info`` has the facts of the run, which is in ``namespace``, and ``task_queue`` is the queue of its worker.
    ``queue_name(queue)`` returns the task queue for a queue of this package, and ``workflow_id(id)`` the id that a run
    with that business id has on the cluster. ``child_facts(attributes)`` returns the facts with which a child starts.
    """

    payloads: Payloads
    info: RunInfo
    namespace: str
    task_queue: str
    queue_name: Callable[[str], str]
    workflow_id: Callable[[str], str]
    child_facts: Callable[[Mapping[str, Any]], StartFacts]

    def write(self, command: Command, protocol_ids: Mapping[str, str]) -> WorkflowCommand:
        """Return the command of the SDK for a command of the executor.

        ``protocol_ids`` maps the id of an update to the id under which the SDK takes its answer.
        """
        written = WorkflowCommand()
        match command.kind:
            case "AcceptUpdate" | "CompleteUpdate" | "FailUpdate":
                self._write_answer(written, command, protocol_ids[command.attributes["id"]])
            case "CancelActivity" | "CancelTimer" | "CancelChild":
                self._write_cancel(written, command)
            case kind:
                self.writers[kind](self, written, command.attributes, command.seq)
        return written

    def _write_answer(self, written: WorkflowCommand, command: Command, protocol_id: str) -> None:
        answer = written.update_response
        answer.protocol_instance_id = protocol_id
        if command.kind == "AcceptUpdate":
            answer.accepted.SetInParent()
        elif command.kind == "CompleteUpdate":
            answer.completed.CopyFrom(self.payloads.encode(command.attributes["result"]))
        else:
            answer.rejected.CopyFrom(write_failure(command.attributes, self.payloads))

    def _write_cancel(self, written: WorkflowCommand, command: Command) -> None:
        assert command.seq is not None
        if command.kind == "CancelActivity":
            written.request_cancel_activity.seq = command.seq
        elif command.kind == "CancelTimer":
            written.cancel_timer.seq = command.seq
        else:
            written.cancel_child_workflow_execution.child_workflow_seq = command.attributes["child"]

    def _write_activity(self, written: WorkflowCommand, attributes: Mapping[str, Any], seq: int) -> None:
        activity, options = written.schedule_activity, attributes.get("options", {})
        activity.seq, activity.activity_id, activity.activity_type = seq, str(seq), attributes["activity"]
        activity.task_queue = self.queue_name(options["queue"]) if "queue" in options else self.task_queue
        activity.arguments.extend(self.payloads.encode(argument) for argument in attributes["args"])
        facts = {"seq": seq, "run_id": self.info.run_id, "id": self.info.id, "headers": self.info.headers}
        facts |= {"kwargs": attributes.get("kwargs"), "retry": options.get("retry")}
        facts |= {"has_heartbeat": "heartbeat" in options, "key": options.get("concurrency_key")}
        activity.headers[names.CALL].CopyFrom(
            self.payloads.encode({name: fact for name, fact in facts.items() if fact is not None})
        )
        for name in ("schedule_to_start", "start_to_close", "schedule_to_close"):
            if options.get(name) is not None:
                getattr(activity, f"{name}_timeout").FromTimedelta(timedelta(seconds=options[name]))
        if options.get("start_to_close") is None:
            activity.start_to_close_timeout.FromTimedelta(ACTIVITY_LIMIT)
        beat = options.get("heartbeat")
        activity.heartbeat_timeout.FromTimedelta(HEARTBEAT if beat is None else timedelta(seconds=beat))
        activity.retry_policy.CopyFrom(_retry_policy(options))
        activity.cancellation_type = ActivityCancellationType.TRY_CANCEL

    def _write_timer(self, written: WorkflowCommand, attributes: Mapping[str, Any], seq: int) -> None:
        written.start_timer.seq = seq
        duration = max(timedelta(seconds=attributes["duration"]), _SHORTEST_TIMER)
        written.start_timer.start_to_fire_timeout.FromTimedelta(duration)

    def _write_child(self, written: WorkflowCommand, attributes: Mapping[str, Any], seq: int) -> None:
        child = written.start_child_workflow_execution
        child.seq, child.namespace, child.workflow_id = seq, self.namespace, self.workflow_id(attributes["id"])
        child.workflow_type = attributes["workflow"]
        child.task_queue = self.queue_name(attributes["queue"])
        child.input.extend(map(self.payloads.encode, (attributes["args"], self.child_facts(attributes))))
        for name in ("execution_timeout", "run_timeout"):
            if attributes.get(name) is not None:
                getattr(child, f"workflow_{name}").FromTimedelta(timedelta(seconds=attributes[name]))
        child.parent_close_policy = _PARENT_CLOSE[attributes["parent_close"]]
        child.cancellation_type = child_workflow.ChildWorkflowCancellationType.TRY_CANCEL

    def _write_signal(self, written: WorkflowCommand, attributes: Mapping[str, Any], seq: int) -> None:
        signal = written.signal_external_workflow_execution
        signal.seq, signal.signal_name = seq, attributes["name"]
        self._write_target(signal.workflow_execution, attributes["id"])
        signal.args.append(self.payloads.encode(attributes["payload"]))
        if self.info.headers:
            signal.headers[names.HEADERS].CopyFrom(self.payloads.encode(self.info.headers))

    def _write_external_cancel(self, written: WorkflowCommand, attributes: Mapping[str, Any], seq: int) -> None:
        cancel = written.request_cancel_external_workflow_execution
        cancel.seq = seq
        self._write_target(cancel.workflow_execution, attributes["id"])

    def _write_target(self, execution: Any, workflow_id: str) -> None:
        execution.namespace, execution.workflow_id = self.namespace, self.workflow_id(workflow_id)

    def _write_marker(self, written: WorkflowCommand, attributes: Mapping[str, Any], _: Any) -> None:
        written.set_patch_marker.patch_id = attributes["id"]
        written.set_patch_marker.deprecated = attributes["deprecated"]

    def _write_completion(self, written: WorkflowCommand, attributes: Mapping[str, Any], _: Any) -> None:
        written.complete_workflow_execution.result.CopyFrom(self.payloads.encode(attributes["result"]))

    def _write_run_failure(self, written: WorkflowCommand, attributes: Mapping[str, Any], _: Any) -> None:
        written.fail_workflow_execution.failure.CopyFrom(write_failure(attributes, self.payloads))

    def _write_run_cancel(self, written: WorkflowCommand, _attributes: Mapping[str, Any], _: Any) -> None:
        written.cancel_workflow_execution.SetInParent()

    def continue_as_new(self, workflow: str, args: Any, facts: StartFacts) -> WorkflowCommand:
        """Return the command that starts the next run of the chain with ``args`` and ``facts``."""
        written = WorkflowCommand()
        following = written.continue_as_new_workflow_execution
        following.workflow_type, following.task_queue = workflow, self.task_queue
        following.arguments.extend(map(self.payloads.encode, (args, facts)))
        return written

    def write_rejection(self, protocol_id: str, error: Mapping[str, Any]) -> WorkflowCommand:
        """Return the command that tells the sender of an update that it is not accepted.

        ``protocol_id`` is the id under which the SDK takes the answer, and ``error`` has the attributes of the error.
        """
        written = WorkflowCommand()
        written.update_response.protocol_instance_id = protocol_id
        written.update_response.rejected.CopyFrom(write_failure(error, self.payloads))
        return written

    def write_query_answer(self, query_id: str, answer: Any) -> WorkflowCommand:
        """Return the command that answers a query. Raises ``PayloadError`` if the answer cannot be encoded."""
        written = WorkflowCommand()
        written.respond_to_query.query_id = query_id
        written.respond_to_query.succeeded.response.CopyFrom(self.payloads.encode(answer))
        return written

    def write_query_failure(self, query_id: str, error: Mapping[str, Any]) -> WorkflowCommand:
        """Return the command that tells the sender of a query that it failed, with the attributes of ``error``."""
        written = WorkflowCommand()
        written.respond_to_query.query_id = query_id
        written.respond_to_query.failed.CopyFrom(write_failure(error, self.payloads))
        return written

    #: The method that writes a command, by its kind, for the kinds that ``write`` does not treat itself.
    writers: ClassVar[Mapping[str, Callable[[CommandWriter, WorkflowCommand, Mapping[str, Any], Any], None]]] = {
        "ScheduleActivity": _write_activity,
        "StartTimer": _write_timer,
        "StartChild": _write_child,
        "SignalExternal": _write_signal,
        "CancelExternal": _write_external_cancel,
        "SetPatchMarker": _write_marker,
        "CompleteWorkflow": _write_completion,
        "FailWorkflow": _write_run_failure,
        "CancelWorkflow": _write_run_cancel,
    }


def write_record(number: int, record: DeliveryRecord) -> WorkflowCommand:
    """Return the command that stores a delivery record as a marker in the history, where replays find it.

    The ``number`` makes the id of the marker unique in the run.
    """
    written = WorkflowCommand()
    written.set_patch_marker.patch_id = f"{names.RECORD}{number}:{json.dumps(record.to_data(), sort_keys=True)}"
    return written


def _retry_policy(options: Mapping[str, Any]) -> RetryPolicy:
    """Return the retry policy of an activity for the server, which counts the attempts and waits between them.

    ``ActivityAttempt`` decides which errors end the retries. For an atomic activity the server has no limit of
    attempts, so that a lost attempt is always repeated.
    """
    policy = options.get("retry") or OwnRetryPolicy().as_dict()
    most = 0 if options.get("atomic") else policy["max_attempts"]
    written = RetryPolicy(backoff_coefficient=policy["backoff"], maximum_attempts=most)
    initial = max(timedelta(seconds=policy["initial_interval"]), _SHORTEST_TIMER)
    written.initial_interval.FromTimedelta(initial)
    written.maximum_interval.FromTimedelta(max(timedelta(seconds=policy["max_interval"]), initial))
    return written
