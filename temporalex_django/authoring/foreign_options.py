"""Options that people know from other packages, and the words for them here.

Python's own error names the option that does not exist. This one names the option to write.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_ATTEMPTS: Final = "retry=RetryPolicy(max_attempts=...)"
_PAUSE: Final = "retry=RetryPolicy(initial_interval=...)"
_ERRORS: Final = "retry=RetryPolicy(non_retryable=[...])"

#: What to write instead of an option of another package, for ``@activity`` and the call site of an activity.
ACTIVITY: Final = {
    **dict.fromkeys(
        ("retries", "max_retries", "max_attempts", "maximum_attempts", "max_tries", "tries", "attempts"), _ATTEMPTS
    ),
    **dict.fromkeys(("retry_policy", "retry_kwargs", "autoretry_for", "retry_on", "retry_for"), _ATTEMPTS),
    **dict.fromkeys(
        (
            "retry_delay",
            "retry_delay_seconds",
            "interval_seconds",
            "default_retry_delay",
            "retry_backoff",
            "backoff",
            "min_backoff",
            "initial_interval",
        ),
        _PAUSE,
    ),
    **dict.fromkeys(("max_interval", "max_backoff", "retry_backoff_max"), "retry=RetryPolicy(max_interval=...)"),
    **dict.fromkeys(("retry_jitter", "jitter"), "retry=RetryPolicy(jitter=...)"),
    **dict.fromkeys(("throws", "non_retryable", "dont_autoretry_for", "non_retryable_error_types"), _ERRORS),
    **dict.fromkeys(
        (
            *("timeout", "time_limit", "soft_time_limit", "job_timeout", "start_to_close_timeout", "result_timeout"),
            *("soft_timeout", "hard_timeout", "execution_timeout", "run_timeout", "timeout_seconds", "deadline", "ttl"),
        ),
        "start_to_close=... for one attempt, or schedule_to_close=... for all of them",
    ),
    "schedule_to_close_timeout": "schedule_to_close=...",
    "schedule_to_start_timeout": "schedule_to_start=...",
    "heartbeat_timeout": "heartbeat=...",
    **dict.fromkeys(("task_queue", "queue_name", "routing_key", "exchange"), "queue=..."),
    **dict.fromkeys(("rate_limit", "max_rate"), 'rate="10/s"'),
    **dict.fromkeys(("max_concurrency", "concurrency_limit", "max_concurrent", "max_workers"), "concurrency=..."),
    **dict.fromkeys(("transaction", "transactional"), "atomic=True"),
    **dict.fromkeys(("bind", "pass_context", "takes_context"), "activity_context() in the function"),
    "description": "label=...",
    "title": "label=...",
    **dict.fromkeys(("summary", "task_run_name", "verbose_name"), "label=..."),
    "priority": "queue=..., and workers for that queue",
    **dict.fromkeys(("expires", "queue_timeout"), "schedule_to_start=..."),
    **dict.fromkeys(("cron", "schedule", "crontab", "periodic"), "a Schedule of a workflow that calls the activity"),
    **dict.fromkeys(("on_failure", "on_error", "link_error"), "`try:` around the call in run()"),
    **dict.fromkeys(("on_success", "link", "callback"), "the next step after the call in run()"),
    **dict.fromkeys(("id", "activity_id", "task_id", "idempotency_key"), "activity_context().idempotency_key in it"),
    **dict.fromkeys(("unique", "lock", "queueing_lock", "unique_for", "once"), "`unique` in the workflow class"),
    **dict.fromkeys(("eta", "countdown", "run_after", "delay"), "`await api.sleep(...)` before the call"),
}
RETRY_POLICY: Final = {
    **dict.fromkeys(
        ("max_retries", "maximum_retries", "retries", "maximum_attempts", "max_tries", "tries", "attempts"),
        "max_attempts=..., which counts the first attempt, too",
    ),
    **dict.fromkeys(
        ("delay", "retry_delay", "initial_delay", "interval", "min_backoff", "interval_start", "wait"),
        "initial_interval=...",
    ),
    **dict.fromkeys(("backoff_coefficient", "backoff_rate", "multiplier", "factor", "exponential"), "backoff=..."),
    **dict.fromkeys(("maximum_interval", "max_delay", "max_backoff", "interval_max"), "max_interval=..."),
    **dict.fromkeys(
        ("timeout", "max_time", "max_duration", "max_elapsed", "deadline", "stop", "limit"),
        "max_attempts=..., or schedule_to_close=... of @activity for a limit in time",
    ),
    **dict.fromkeys(("retry_delay_seconds", "interval_seconds", "delays", "schedule"), "initial_interval=..."),
    **dict.fromkeys(
        ("non_retryable_error_types", "non_retryable_errors", "throws", "dont_autoretry_for"), "non_retryable=[...]"
    ),
    **dict.fromkeys(
        ("retry_on", "autoretry_for", "retry_for"), "non_retryable=[...], the errors that end the attempts"
    ),
}
APPROVAL: Final = {
    **dict.fromkeys(("group", "candidate_groups"), 'groups=["..."]'),
    **dict.fromkeys(("user", "assignee", "assignees", "candidate_users", "approver", "approvers"), 'users=["..."]'),
    **dict.fromkeys(("permission", "roles", "perm"), 'role="app.codename"'),
    **dict.fromkeys(("timeout", "deadline", "until", "due_date", "expires"), "due=..."),
    **dict.fromkeys(("options", "choices", "buttons", "actions"), 'outcomes=["approved", "rejected"]'),
    **dict.fromkeys(("reminder", "remind_after", "remind_every"), "remind=..."),
    **dict.fromkeys(("data", "context", "payload", "details", "description"), "shows=..."),
    **dict.fromkeys(("fields", "schema", "form_class"), "form=..."),
}
PHASE: Final = {
    **dict.fromkeys(("signals", "on_signal", "signal_handlers"), 'signal={"name": handler}'),
    **dict.fromkeys(("updates", "on_update", "update_handlers", "handlers"), 'update={"name": handler}'),
    **dict.fromkeys(("deadline", "due", "expires"), "until=..."),
    **dict.fromkeys(("initial", "initial_state"), "the state as the first argument"),
}
HANDLER: Final = {
    **dict.fromkeys(("name", "key", "alias"), 'the name in the phase: api.phase(state, update={"name": handler})'),
    **dict.fromkeys(("check", "validate", "validators"), "validator=..., which an update has"),
    "validator": "update(handler, validator=...): a signal has no sender who waits for an answer",
    **dict.fromkeys(("returns", "response", "result_type"), "update(handler, returns=...)"),
    **dict.fromkeys(("perm", "permissions", "role"), 'permission="app.codename"'),
    **dict.fromkeys(("title", "description"), "label=..."),
    **dict.fromkeys(("unfinished_policy", "dynamic"), "api.wait_condition(...) before the end of run"),
}
PARALLEL: Final = {
    **dict.fromkeys(
        ("return_exceptions",), "raise_errors=..., which is False by default: a branch that raised is an Err then"
    ),
    **dict.fromkeys(
        ("max_concurrency", "max_workers", "concurrency", "max_parallel", "semaphore", "workers"), "limit=..."
    ),
    "timeout": "api.race(lambda: api.parallel(...), api.sleep(...))",
}
RACE: Final = {
    **dict.fromkeys(("timeout", "until", "deadline"), "a branch more: api.race(..., api.sleep(...))"),
    **dict.fromkeys(("return_when",), "api.parallel(...) to wait for all branches"),
}
SLEEP: Final = {
    **dict.fromkeys(("days", "hours", "minutes", "weeks", "milliseconds"), "api.sleep(timedelta(...))"),
    **dict.fromkeys(("seconds", "delay", "delta", "secs", "delay_seconds", "timeout"), "api.sleep(5), in seconds"),
    **dict.fromkeys(("until", "deadline", "when", "eta", "at"), "api.sleep_until(instant)"),
    **dict.fromkeys(("label", "summary", "description"), "then=..."),
}
WAIT_FOR_EVENT: Final = {
    **dict.fromkeys(("due", "deadline", "expires"), "until=..."),
    **dict.fromkeys(("event", "signal"), "the name of the event as the first argument"),
}
ESCALATION: Final = {
    **dict.fromkeys(("group", "to_group"), 'groups=["..."]'),
    **dict.fromkeys(("user", "to", "assignee"), 'users=["..."]'),
    **dict.fromkeys(("permission", "roles"), 'role="app.codename"'),
    **dict.fromkeys(("delay", "timeout", "due"), "after=..."),
}
SCHEDULE: Final = {
    **dict.fromkeys(("crontab", "cron_expression"), 'cron="30 2 * * *"'),
    **dict.fromkeys(("interval", "run_every", "seconds", "minutes", "hours", "days"), "every=timedelta(...)"),
    **dict.fromkeys(("timezone", "time_zone", "zone"), 'tz="Europe/Berlin"'),
    **dict.fromkeys(("kwargs", "input", "params", "payload", "data"), "args={...}"),
    **dict.fromkeys(("eta", "run_at", "start_at", "when", "clocked"), "at=[...]"),
    **dict.fromkeys(("id", "schedule_id", "key", "title"), "the name as the first argument"),
    **dict.fromkeys(("task", "func", "action"), "the workflow class as the second argument"),
}
UNIQUE: Final = {
    **dict.fromkeys(("field", "name", "prefix", "on", "by"), 'key="..."'),
    **dict.fromkeys(("per", "within", "together"), "scope=..."),
}
#: Names of other packages for primitives, methods of handles, and the start of a workflow.
PRIMITIVES: Final = {
    **dict.fromkeys(
        ("execute_activity", "execute_local_activity", "start_activity", "run_activity", "activity", "step", "call"),
        "`await charge(...)`: an activity is called like a function, and charge.options(...) has options for one call",
    ),
    **dict.fromkeys(
        ("execute_child_workflow", "start_child_workflow", "child_workflow", "run_workflow", "subflow", "start"),
        "api.child(Workflow, args)",
    ),
    **dict.fromkeys(("gather", "wait_all", "all", "join", "group", "map", "TaskGroup"), "api.parallel(...)"),
    **dict.fromkeys(("wait_any", "any", "select", "first", "as_completed"), "api.race(...)"),
    **dict.fromkeys(
        ("wait_for", "timeout", "wait"), "timeout=... of api.phase or api.wait_condition, or api.race(...)"
    ),
    **dict.fromkeys(("sleep_for", "timer", "start_timer", "delay"), "api.sleep(...)"),
    "continue_as_new": "return ContinueAsNew(args)",
    "upsert_search_attributes": "api.set_search_attributes({...})",
    **dict.fromkeys(
        ("get_signal", "wait_signal", "on_signal", "receive", "recv", "get_event", "wait_for_event", "signal_handler"),
        "api.wait_for_signal(name), or a handler in api.phase(...)",
    ),
    **dict.fromkeys(("send", "send_signal", "signal", "get_external_workflow_handle"), "api.signal_external(...)"),
    **dict.fromkeys(
        ("set_state", "set_event", "publish", "update_progress", "set_progress"), "api.publish_state(value)"
    ),
    **dict.fromkeys(("time", "datetime", "utcnow", "current_time", "today"), "api.now()"),
    **dict.fromkeys(("log", "get_logger", "get_run_logger", "print"), "api.logger"),
    **dict.fromkeys(("workflow_info", "get_info", "current", "workflow_id", "run_id"), "api.info()"),
    **dict.fromkeys(("uuid", "uuid1"), "api.uuid4()"),
    **dict.fromkeys(("is_cancelled", "cancelled"), "api.cancel_requested()"),
}
HANDLE: Final = {
    **dict.fromkeys(
        ("get_result", "get", "wait", "join", "output", "value", "fetch", "wait_for_completion"), "result()"
    ),
    **dict.fromkeys(
        ("state", "get_status", "done", "is_done", "ready", "successful", "failed", "is_running", "info", "refresh"),
        "status, or describe()",
    ),
    **dict.fromkeys(("revoke", "abort", "stop", "kill"), "cancel(), or terminate()"),
    **dict.fromkeys(("execute_update", "start_update", "send_update"), "update(name, args)"),
    **dict.fromkeys(("send", "send_signal", "send_event", "notify"), "signal(name, payload)"),
    **dict.fromkeys(("execute_query", "get_state"), "query(name)"),
    **dict.fromkeys(("retry", "restart", "rerun"), "try_again() for a blocked run, or reset() for one that has ended"),
    **dict.fromkeys(("events", "logs", "get_history"), "history()"),
    **dict.fromkeys(("approve", "reject"), "decide(outcome)"),
}
INPUT: Final = "the input of a run is one value, so write args="
MESSAGE: Final = {
    **dict.fromkeys(("kwargs", "data", "body", "params", "input", "arg", "value"), "the value after the name"),
    **dict.fromkeys(("user", "sender", "actor"), "by=..."),
    **dict.fromkeys(("result_type", "response_type", "return_type"), "returns=..."),
    **dict.fromkeys(("key", "message_id", "update_id", "idempotency_key"), "id=..."),
}
START: Final = {
    **dict.fromkeys(("workflow_id", "task_id", "run_id", "job_id", "key"), "id=..."),
    **dict.fromkeys(("input", "arg", "params", "payload", "data", "kwargs", "arguments"), "args={...}"),
    **dict.fromkeys(("countdown", "delay", "start_in"), "start_delay=..."),
    **dict.fromkeys(("eta", "at", "run_at", "run_after", "schedule"), "start_at=..."),
    **dict.fromkeys(("expires",), "start_before=..."),
    **dict.fromkeys(("user", "actor", "started_by"), "by=..."),
    **dict.fromkeys(("task_queue", "queue"), "task_queue = ... in the class"),
    **dict.fromkeys(("timeout",), "execution_timeout = ... in the class"),
    **dict.fromkeys(("id_reuse_policy",), "on_closed=..."),
    **dict.fromkeys(("id_conflict_policy",), "on_conflict=..."),
    **dict.fromkeys(("retry", "retries", "retry_policy"), "retry=... at the activities: a run is not tried again"),
    **dict.fromkeys(("memo", "meta"), "tags=..., search_attributes=... or headers=..."),
}


def answers_foreign_options(
    name: str, words: Mapping[str, str], *, fields: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator whose function answers unknown options with the words to write.

    ``name`` is the name of the call for the error, and ``words`` maps options of other packages to what to write here.
    ``fields`` is that of ``unknown_options``. The function raises ``TypeError``, as Python does.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(fn).parameters.values()
        options = frozenset(p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY) - {"self"}

        @wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True  # a line of a log has room for three places, and this is none of them
            if kwargs and not options.issuperset(kwargs):
                raise TypeError(unknown_options(name, kwargs, options, words, fields=fields))
            return fn(*args, **kwargs)

        checked.options = options  # type: ignore[attr-defined] # for callers that need no answer
        return checked

    return decorate


def answers_foreign_arguments(name: str, words: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that does for the constructor what ``answers_foreign_options`` does for a function."""

    def decorate(cls: type[T]) -> type[T]:
        cls.__init__ = answers_foreign_options(name, words)(cls.__init__)  # type: ignore[method-assign]
        return cls

    return decorate


def unknown_options(
    name: str, arguments: Iterable[str], option_names: Iterable[str], words: Mapping[str, str], *, fields: str = ""
) -> str:
    """Return a sentence for each option in ``arguments`` that the call ``name`` does not have.

    ``option_names`` are the options that it has, and ``words`` those of ``answers_foreign_options``. With ``fields``,
    those that look like no option at all are fields of a value: ``fields`` says where to write it.
    """
    options = sorted(option_names)
    advice = {option: _advice(option, options, words) for option in arguments if option not in options}
    has = "" if fields else f" (it has: {', '.join(options)})"
    sentences = [f"{name} has no option {option}{text or has}" for option, text in advice.items() if text or has]
    if fields and (others := [option for option, text in advice.items() if not text]):
        value = ", ".join(f'"{other}": ...' for other in others)
        sentences.append(f"{name} has no option {', '.join(others)}: {fields}{{{value}}}")
    return "; ".join(sentences)


def unknown_start_options(name: str, arguments: Iterable[str], signature: inspect.Signature) -> str:
    """Return a sentence for the options in ``arguments`` that ``name``, the start of a class, does not have.

    Those that look like no option at all are fields of the input.
    """
    options = [
        key for key, parameter in signature.parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    return unknown_options(name, arguments, options, START, fields=INPUT)


def unknown_name(owner: str, name: str, names: Iterable[str], words: Mapping[str, str]) -> str:
    """Return the sentence about an attribute ``name`` that ``owner`` does not have. ``names`` are those that it has."""
    public = [] if name.startswith("_") else [other for other in names if not other.startswith("_")]
    return f"{owner} has no attribute {name!r}{_advice(name, public, {} if name.startswith('_') else words)}"


def call_options(name: str, arguments: Iterable[str], option_names: Iterable[str]) -> str:
    """Return advice for a call of the activity ``name`` whose ``arguments`` look like options; "" if none does."""
    options = sorted(option_names)
    foreign = [option for option in sorted(arguments) if option in options or option in ACTIVITY]
    if not foreign:
        return ""
    advice = ", ".join(f"{option}=..." if option in options else ACTIVITY[option] for option in foreign)
    return f": options are no arguments of the function: write {name}.options(...)(...) with {advice}"


def _advice(option: str, options: Sequence[str], words: Mapping[str, str]) -> str:
    """Return what to write, or "" if nothing is like the option."""
    if option in words:
        return f": write {words[option]}"
    near = difflib.get_close_matches(option, options, n=1, cutoff=0.75)
    return f": did you mean {near[0]}?" if near else ""
