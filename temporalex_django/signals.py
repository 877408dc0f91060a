"""Django signals: what happened to runs.

All are sent with ``send_robust`` after the commit of what they tell, by the process that committed it, and never on
replay. A receiver that raises is logged and harms nobody. ``sender`` is the workflow's class where the process has it,
else its name.

Every signal has ``workflow`` (name), ``workflow_id``, ``run_id``; further arguments stand beside each.
"""

from __future__ import annotations

from django.dispatch import Signal

#: A run did its first activation. ``version``.
instance_started = Signal()
#: A run completed. ``result``.
instance_completed = Signal()
#: A run failed, was terminated or timed out. ``status``, ``failure``.
instance_failed = Signal()
#: A run ended cancelled.
instance_cancelled = Signal()
#: A run cannot go on: ``code``, ``error``.
instance_blocked = Signal()
#: A run published state. ``state``.
state_published = Signal()
#: A message is in the history now, or was settled as undelivered. ``kind`` (signal, update, cancel, undelivered),
#: ``name``.
message_received = Signal()
#: The handler of a signal failed, and the signal is a failed message now. ``id`` (of the message), ``name``, ``type``.
signal_failed = Signal()
#: An accepted update ended. ``update_id``, ``name``, ``status`` (completed, failed).
update_completed = Signal()
#: An attempt of an activity begins, in the worker that runs it. ``activity``, ``seq``, ``attempt``.
activity_started = Signal()
#: An activity's result is in the history. ``activity``, ``seq``.
activity_completed = Signal()
#: An activity finally failed or timed out. ``activity``, ``seq``, ``type``, ``attempts``.
activity_failed = Signal()
#: A timer fired. ``seq``.
timer_fired = Signal()
#: A person acted on a run, or somebody forced it. ``action``, ``actor``, ``reason``.
operator_acted = Signal()

# -- human tasks: each also has ``task`` (its id, as text), ``title`` and ``key``

#: A run asks people to decide something. ``asked`` (whom), ``due_at``.
human_task_opened = Signal()
#: Nobody has decided yet. ``reminders``: how many there were.
human_task_reminded = Signal()
#: Nobody has decided yet, and others may now as well. ``asked``: all who may.
human_task_escalated = Signal()
#: It is under four eyes, and everybody whom it asks is shut out: nobody may decide it. ``asked``: all whom it asks.
human_task_nobody_left = Signal()
#: A person claimed it. ``actor``, ``until``.
human_task_claimed = Signal()
#: A person decided. ``outcome``, ``decided_by`` (username).
human_task_decided = Signal()
#: It is not open any more. ``ending``: decided, overdue, cancelled, run_closed.
human_task_closed = Signal()

# -- graphs: each also has ``workflow_version`` and, merged, the ``telemetry`` of the start; steps are keys, durations
# seconds between stamps, None where the beginning is not known

#: A process has a run in hand. ``recovered``: rebuilt from its history.
runner_initialized = Signal()
#: A graph began.
workflow_started = Signal()
#: A graph completed, or was ended from outside. ``status``, ``duration``.
workflow_stopped = Signal()
#: A graph failed. ``step``, ``type``, ``reason``, ``duration``.
workflow_failed = Signal()
#: An event led on. ``step``, ``event``, ``targets``, ``count``, ``fan_out``.
workflow_transition = Signal()
#: A step became active. ``step``, ``concurrent``, ``active_count``.
step_started = Signal()
#: A step emitted its event. ``step``, ``event``, ``duration``.
step_stopped = Signal()
#: A step failed for good. ``step``, ``type``, ``message``, ``duration``.
step_failed = Signal()
#: A step waits for its event. ``step``, ``events``.
step_waiting = Signal()
#: The event of a waiting step came. ``step``, ``event``, ``source`` (external, timeout), ``wait_duration``.
step_resumed = Signal()
#: The engine has taken in what ended. ``status``, ``active_count``, ``completed_count``.
engine_advanced = Signal()

ALL = {
    name: value for name, value in list(globals().items()) if isinstance(value, Signal)
}  #: by name, for whoever sends them from records


def send(name: str, sender: object, /, **arguments: object) -> None:
    """Send one of them robustly; Django logs what a receiver raises."""
    ALL[name].send_robust(sender=sender, **arguments)
