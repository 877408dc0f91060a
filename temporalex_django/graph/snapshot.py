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
from temporalex_django.graph.frozen_data import freeze, thaw
from temporalex_django.graph.instance import STATUSES, Instance
from temporalex_django.graph.steps import key_of

_STEP_SETS = ("active", "waiting", "requested", "completed")


def dump(instance: Instance) -> dict[str, Any]:
    """Plain JSON data of all but the class."""
    keys = instance.graph.keys
    started = instance.telemetry_start_time
    return {
        "id": instance.id,
        "version": instance.version,
        "status": instance.status,
        "initial": thaw(instance.initial),
        **{name: [keys[i] for i in bits(getattr(instance, name))] for name in _STEP_SETS},
        "configs": {key_of(step): thaw(config) for step, config in instance.step_configs.items()},
        "entries": [
            [key_of(e.step), e.event, e.timestamp.isoformat() if e.timestamp else None, thaw(e.context_updates)]
            for e in instance.execution_history
        ],
        "runtime_metadata": thaw(dict(instance.runtime_metadata)),
        "telemetry_metadata": thaw(dict(instance.telemetry_metadata)),
        "telemetry_start_time": started.isoformat() if started else None,
        "started_by": instance.started_by,
        "failed_step": None if instance.failed_step is None else key_of(instance.failed_step),
        "reason": instance.reason,
        "size": instance.size,
    }


def start_snapshot(workflow: Any, *, telemetry: Any = None, started_by: Sender | None = None) -> dict[str, Any] | None:
    """What a new run begins with beside its input; ``started_by`` is the person who starts it.

    Raises ``PayloadError`` for telemetry of what is no graph, or that is no mapping.
    """
    is_graph = isinstance(getattr(workflow, "_graph", None), Graph)
    starter = (
        {}
        if started_by is None or not started_by.key
        else {"started_by": started_by.key, "started_as": started_by.name}
    )
    if telemetry is None and not (is_graph and starter):
        return starter or None
    if not is_graph:
        raise PayloadError(f"{workflow.name} is no graph: its start takes no telemetry")
    if telemetry is not None and not isinstance(telemetry, Mapping):
        raise PayloadError(f"the telemetry metadata of {workflow.name} must be a mapping, not {telemetry!r}")
    return {"telemetry_metadata": dict(telemetry or {}), **starter}


def new_instance(workflow: Any, *, id: str, version: int, args: Any, data: Mapping[str, Any] | None) -> Instance:
    """The instance with which a run begins; ``data``: see ``start_snapshot`` and ``snapshot_for_version``."""
    if data is not None and "status" in data:
        return load(workflow, data)
    start_data = data or {}
    instance = Instance.new(
        id=id, workflow=workflow, version=version, initial=args, telemetry_metadata=start_data.get("telemetry_metadata")
    )
    return instance.changed(started_by=start_data["started_by"]) if "started_by" in start_data else instance


def load(workflow: Any, data: Mapping[str, Any]) -> Instance:
    """The instance that ``dump`` was given, of that class.

    Raises ``PayloadError`` for a step or a status that there is not.
    """
    graph: Graph = workflow._graph  # noqa: SLF001 - the class is one of ours
    label = f"the stored instance {data.get('id')!r} of {workflow.__name__}"

    def number(key: str) -> int:
        step = graph.by_key.get(key)
        if step is None:
            raise PayloadError(f"{label}: there is no step {key!r}")
        return graph.number[step]

    if data["status"] not in STATUSES:
        raise PayloadError(f"{label}: {data['status']!r} is no status")
    log = Log()
    for key, event, at, value in data["entries"]:
        timestamp = datetime.fromisoformat(at) if at else None
        entry = ExecutionEntry(graph.steps[number(key)], event, timestamp, freeze(value))
        log.with_entry(len(log.entries), key, entry)
    log.configs.update((number(key), config) for key, config in data["configs"].items())
    started, failed = data["telemetry_start_time"], data["failed_step"]
    return Instance(
        id=data["id"],
        workflow=workflow,
        version=data["version"],
        initial=freeze(data["initial"]),
        status=data["status"],
        runtime_metadata=freeze(data["runtime_metadata"]),
        telemetry_metadata=freeze(data["telemetry_metadata"]),
        telemetry_start_time=datetime.fromisoformat(started) if started else None,
        started_by=data.get("started_by", ""),
        failed_step=None if failed is None else graph.steps[number(failed)],
        reason=data["reason"],
        log=log,
        count=len(log.entries),
        size=data["size"],
        **{name: sum(1 << number(key) for key in data[name]) for name in _STEP_SETS},
    )


def redact_instance(instance: Instance, redactor: Redactor) -> Instance:
    """The instance as somebody sees it who does not see all of its data."""
    data = dump(instance)
    data["initial"] = redactor.redact_payload(data["initial"])
    data["configs"] = {
        key: redactor.redact_payload(config, message_name=key) for key, config in data["configs"].items()
    }
    data["entries"] = [
        [key, event, at, redactor.redact_payload(value, message_name=key)] for key, event, at, value in data["entries"]
    ]
    data["reason"] = redactor.redact_payload(data["reason"])
    return load(instance.workflow, data)


def snapshot_for_version(instance: Instance, target: Any, new_keys: Mapping[str, str]) -> dict[str, Any]:
    """A snapshot of ``instance`` for the class ``target``.

    ``new_keys`` maps old keys to new ones, to "" what is left behind.

    Raises ``PayloadError`` saying why the instance cannot stand in that graph: a step that is not there, or one that
    has begun although something that leads to it there has still to end.
    """
    if instance.closed:
        raise PayloadError(f"{instance.id} has ended ({instance.status}): there is nothing to move")
    graph: Graph = target._graph  # noqa: SLF001 - as above
    data = dump(instance)

    def rename_key(key: str, *, live: bool) -> str | None:
        new = new_keys.get(key, key)
        if not new and not live:
            return None
        if new not in graph.by_key:
            hint = f"map it with --map {key}=NewStep" + (
                "" if live else f", or leave its data behind with --map {key}="
            )
            raise PayloadError(f"version {target.version} has no step {new or key!r}: {hint}")
        return new

    for name in _STEP_SETS:
        keys = [rename_key(key, live=name != "completed") for key in data[name]]
        data[name] = [key for key in keys if key is not None]
    data["configs"] = {rename_key(key, live=True): config for key, config in data["configs"].items()}
    entries = [[rename_key(key, live=False), *rest] for key, *rest in data["entries"]]
    data["entries"] = [entry for entry in entries if entry[0] is not None]
    data["version"] = target.version
    moved_instance = load(target, data)
    for i in bits(moved_instance.active | moved_instance.waiting | moved_instance.completed):
        for a in bits(graph.before[i] & moved_instance.live):
            raise PayloadError(
                f"step {graph.keys[i]!r} has begun, and in version {target.version} {graph.keys[a]!r}, which is still to end, comes "
                "before it"
            )
    return data
