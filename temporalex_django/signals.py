"""Django signals that report what happened to runs.

The process that commits a change sends its signals with ``send_robust`` after the commit, and never on replay. An
exception of a receiver is logged and affects nothing else. ``sender`` is the workflow class if the process has it, else
its name.

Every signal has ``workflow`` (the name), ``workflow_id`` and ``run_id``. The other arguments are listed next to each
signal.
"""

from __future__ import annotations

from django.dispatch import Signal

#: A run has made its first activation. ``version``.
instance_started = Signal()
#: A run completed. ``result``.
instance_completed = Signal()
#: A run failed, was terminated or timed out. ``status``, ``failure``.
instance_failed = Signal()
#: A run was cancelled.
instance_cancelled = Signal()
#: A run is blocked. ``code``, ``error``.
instance_blocked = Signal()
#: A run has published state. ``state``.
state_published = Signal()
#: A message is in the history now, or was settled as undelivered. ``kind`` (signal, update, cancel, undelivered),
#: ``name``.
message_received = Signal()
#: The handler of a signal failed, and the signal is a failed message now. ``id`` (of the message), ``name``, ``type``.
signal_failed = Signal()
#: An accepted update ended. ``update_id``, ``name``, ``status`` (completed, failed).
update_completed = Signal()
#: An attempt of an activity starts, in the worker that runs it. ``activity``, ``seq``, ``attempt``.
activity_started = Signal()
#: An activity's result is in the history. ``activity``, ``seq``.
activity_completed = Signal()
#: An activity failed or timed out, without a further attempt. ``activity``, ``seq``, ``type``, ``attempts``.
activity_failed = Signal()
#: A timer fired. ``seq``.
timer_fired = Signal()
#: A destination refused a message of the outbox for good, or it was given up. ``kind``, ``destination``, ``code``,
#: ``error``.
delivery_refused = Signal()
#: A person performed an operation on a run, or code performed one that is always audited. ``action``, ``actor``,
#: ``reason``.
operator_acted = Signal()

# -- human tasks: each also has ``task`` (its id, as text), ``title`` and ``key``

#: A run asks people to decide. ``asked`` (the candidates), ``due_at``.
human_task_opened = Signal()
#: Nobody has decided yet. ``reminders``: their number so far.
human_task_reminded = Signal()
#: Nobody has decided yet, and more people may decide now. ``asked``: all candidates.
human_task_escalated = Signal()
#: It is under four eyes and all its candidates are excluded, so nobody may decide it. ``asked``: all candidates.
human_task_nobody_left = Signal()
#: A person claimed it. ``actor``, ``until``.
human_task_claimed = Signal()
#: A person decided. ``outcome``, ``decided_by`` (username).
human_task_decided = Signal()
#: It is no longer open. ``ending``: decided, overdue, cancelled, run_closed.
human_task_closed = Signal()

# -- graphs: each also has ``workflow_version`` and the items of the start's ``telemetry``. Steps are keys. Durations
# are seconds between recorded times, and None if the start is not known.

#: A process has the executor of a run in memory. ``recovered``: it was rebuilt from the history.
runner_initialized = Signal()
#: A graph started.
workflow_started = Signal()
#: A graph completed, or was closed from outside. ``status``, ``duration``.
workflow_stopped = Signal()
#: A graph failed. ``step``, ``type``, ``reason``, ``duration``.
workflow_failed = Signal()
#: An event led to the next steps. ``step``, ``event``, ``targets``, ``count``, ``fan_out``.
workflow_transition = Signal()
#: A step became active. ``step``, ``concurrent``, ``active_count``.
step_started = Signal()
#: A step produced its event. ``step``, ``event``, ``duration``.
step_stopped = Signal()
#: A step failed, without a further attempt. ``step``, ``type``, ``message``, ``duration``.
step_failed = Signal()
#: A step waits for its event. ``step``, ``events``.
step_waiting = Signal()
#: A waiting step got its event. ``step``, ``event``, ``source`` (external, timeout), ``wait_duration``.
step_resumed = Signal()
#: The engine has applied the results of steps. ``status``, ``active_count``, ``completed_count``.
engine_advanced = Signal()

#: All signals by name: the engine records names, and sends the signals after the commit.
ALL = {name: value for name, value in list(globals().items()) if isinstance(value, Signal)}


def send(name: str, sender: object, /, **arguments: object) -> None:
    """Send the Django signal ``name`` with ``send_robust``; Django logs the exceptions of receivers.

    ``sender`` is the workflow class or its name, and ``arguments`` are listed next to each signal.
    """
    ALL[name].send_robust(sender=sender, **arguments)
