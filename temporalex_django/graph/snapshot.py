"""An instance as plain data, and back.

What a run that moves to another version of its class takes along, and what storages keep.

Steps stand in it by their keys. What is read back is looked up in the class, never imported by a name from the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.senders import Sender
from temporalex_django.errors import PayloadError
from temporalex_django.graph.context import ExecutionEntry, Log
from temporalex_django.graph.definition.structure import Graph, bits
from temporalex_django.graph.instance import STATUSES, Instance
from temporalex_django.graph.steps import key_of
from temporalex_django.graph.values import frozen, thawed

_SETS = ("active", "waiting", "requested", "completed")


def dump(instance: Instance) -> dict[str, Any]:
    """Plain JSON data of all but the class."""
    keys = instance.graph.keys
    started = instance.telemetry_start_time
    return {
        "id": instance.id,
        "version": instance.version,
        "status": instance.status,
        "initial": thawed(instance.initial),
        **{name: [keys[i] for i in bits(getattr(instance, name))] for name in _SETS},
        "configs": {key_of(step): thawed(config) for step, config in instance.step_configs.items()},
        "entries": [
            [key_of(e.step), e.event, e.timestamp.isoformat() if e.timestamp else None, thawed(e.context_updates)]
            for e in instance.execution_history
        ],
        "runtime_metadata": thawed(dict(instance.runtime_metadata)),
        "telemetry_metadata": thawed(dict(instance.telemetry_metadata)),
        "telemetry_start_time": started.isoformat() if started else None,
        "started_by": instance.started_by,
        "failed_step": None if instance.failed_step is None else key_of(instance.failed_step),
        "reason": instance.reason,
        "size": instance.size,
    }


def first(workflow: Any, *, telemetry: Any = None, started_by: Sender | None = None) -> dict[str, Any] | None:
    """What a new run begins with beside its input; ``started_by`` is the person who starts it.

    Raises ``PayloadError`` for telemetry of what is no graph, or that is no mapping.
    """
    graph = isinstance(getattr(workflow, "_graph", None), Graph)
    who = (
        {}
        if started_by is None or not started_by.key
        else {"started_by": started_by.key, "started_as": started_by.name}
    )
    if telemetry is None and not (graph and who):
        return who or None
    if not graph:
        raise PayloadError(f"{workflow.name} is no graph: its start takes no telemetry")
    if telemetry is not None and not isinstance(telemetry, Mapping):
        raise PayloadError(f"the telemetry metadata of {workflow.name} must be a mapping, not {telemetry!r}")
    return {"telemetry_metadata": dict(telemetry or {}), **who}


def begun(workflow: Any, *, id: str, version: int, args: Any, data: Mapping[str, Any] | None) -> Instance:
    """The instance with which a run begins; ``data``: see ``first`` and ``moved``."""
    if data is not None and "status" in data:
        return load(workflow, data)
    given = data or {}
    made = Instance.new(
        id=id, workflow=workflow, version=version, initial=args, telemetry_metadata=given.get("telemetry_metadata")
    )
    return made.changed(started_by=given["started_by"]) if "started_by" in given else made


def load(workflow: Any, data: Mapping[str, Any]) -> Instance:
    """The instance that ``dump`` was given, of that class.

    Raises ``PayloadError`` for a step or a status that there is not.
    """
    graph: Graph = workflow._graph  # noqa: SLF001 - the class is one of ours
    what = f"the stored instance {data.get('id')!r} of {workflow.__name__}"

    def number(key: str) -> int:
        step = graph.by_key.get(key)
        if step is None:
            raise PayloadError(f"{what}: there is no step {key!r}")
        return graph.number[step]

    if data["status"] not in STATUSES:
        raise PayloadError(f"{what}: {data['status']!r} is no status")
    log = Log()
    for key, event, at, value in data["entries"]:
        stamp = datetime.fromisoformat(at) if at else None
        entry = ExecutionEntry(graph.steps[number(key)], event, stamp, frozen(value))
        log.with_entry(len(log.entries), key, entry)
    log.configs.update((number(key), config) for key, config in data["configs"].items())
    started, failed = data["telemetry_start_time"], data["failed_step"]
    return Instance(
        id=data["id"],
        workflow=workflow,
        version=data["version"],
        initial=frozen(data["initial"]),
        status=data["status"],
        runtime_metadata=frozen(data["runtime_metadata"]),
        telemetry_metadata=frozen(data["telemetry_metadata"]),
        telemetry_start_time=datetime.fromisoformat(started) if started else None,
        started_by=data.get("started_by", ""),
        failed_step=None if failed is None else graph.steps[number(failed)],
        reason=data["reason"],
        log=log,
        count=len(log.entries),
        size=data["size"],
        **{name: sum(1 << number(key) for key in data[name]) for name in _SETS},
    )


def viewed(instance: Instance, view: Redactor) -> Instance:
    """The instance as somebody sees it who does not see all of its data."""
    data = dump(instance)
    data["initial"] = view.redact_payload(data["initial"])
    data["configs"] = {key: view.redact_payload(config, message_name=key) for key, config in data["configs"].items()}
    data["entries"] = [
        [key, event, at, view.redact_payload(value, message_name=key)] for key, event, at, value in data["entries"]
    ]
    data["reason"] = view.redact_payload(data["reason"])
    return load(instance.workflow, data)


def moved(instance: Instance, target: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """A snapshot of ``instance`` for the class ``target``.

    ``names`` maps old keys to new ones, to "" what is left behind.

    Raises ``PayloadError`` saying why the instance cannot stand in that graph: a step that is not there, or one that
    has begun although something that leads to it there has still to end.
    """
    if instance.closed:
        raise PayloadError(f"{instance.id} has ended ({instance.status}): there is nothing to move")
    graph: Graph = target._graph  # noqa: SLF001 - as above
    data = dump(instance)

    def renamed(key: str, *, live: bool) -> str | None:
        new = names.get(key, key)
        if not new and not live:
            return None
        if new not in graph.by_key:
            hint = f"map it with --map {key}=NewStep" + (
                "" if live else f", or leave its data behind with --map {key}="
            )
            raise PayloadError(f"version {target.version} has no step {new or key!r}: {hint}")
        return new

    for name in _SETS:
        keys = [renamed(key, live=name != "completed") for key in data[name]]
        data[name] = [key for key in keys if key is not None]
    data["configs"] = {renamed(key, live=True): config for key, config in data["configs"].items()}
    entries = [[renamed(key, live=False), *rest] for key, *rest in data["entries"]]
    data["entries"] = [entry for entry in entries if entry[0] is not None]
    data["version"] = target.version
    made = load(target, data)
    for i in bits(made.active | made.waiting | made.completed):
        for a in bits(graph.before[i] & made.live):
            raise PayloadError(
                f"step {graph.keys[i]!r} has begun, and in version {target.version} {graph.keys[a]!r}, which is still to end, comes "
                "before it"
            )
    return data
