"""An instance as plain data (a snapshot), and back.

A run that moves to another version of its class takes its snapshot along, and storages keep instances in this form.
Steps are named by their keys. When data is read, keys are looked up in the class; nothing is imported by a name from
the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalex_django.authoring.redaction import Redactor
from temporalex_django.core.messages.sender import Sender
from temporalex_django.errors import PayloadError
from temporalex_django.graph.context import ExecutionEntry, Log, freeze, thaw
from temporalex_django.graph.definition import Graph, bits
from temporalex_django.graph.instance import STATUSES, Instance
from temporalex_django.graph.steps import key_of

_STEP_SETS = ("active", "waiting", "requested", "completed")


def dump(instance: Instance) -> dict[str, Any]:
    """Return the instance as plain JSON data (a snapshot), from which ``load`` makes an equal instance again.

    The class of the workflow is not part of the data.
    """
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
    """Return the data (snapshot) that a new run starts with besides its input, or None if there is none.

    ``started_by`` is the person who starts the run, or None. ``telemetry`` is the metadata that a graph merges into its
    Django signals. Raises ``PayloadError`` if the metadata is not a mapping, or if the workflow is not a graph.
    """
    is_graph = isinstance(getattr(workflow, "_graph", None), Graph)
    starter = {}
    if started_by is not None and started_by.key:
        starter = {"started_by": started_by.key, "started_as": started_by.name}
    if telemetry is None and not (is_graph and starter):
        return starter or None
    if not is_graph:
        raise PayloadError(f"{workflow.name} is not a graph: its start does not accept telemetry")
    if telemetry is not None and not isinstance(telemetry, Mapping):
        raise PayloadError(f"the telemetry metadata of {workflow.name} must be a mapping, not {telemetry!r}")
    return {"telemetry_metadata": dict(telemetry or {}), **starter}


def new_instance(workflow: Any, *, id: str, version: int, args: Any, data: Mapping[str, Any] | None) -> Instance:
    """Return the instance that a run of the class ``workflow`` starts with.

    ``id`` is its business id, and ``args`` the input of the run, which becomes the initial context. ``data`` is the
    snapshot of the run, which comes from ``start_snapshot`` or from ``snapshot_for_version``.
    """
    # Only a whole instance has a status: the run was moved here from another version.
    if data is not None and "status" in data:
        return load(workflow, data)
    start_data = data or {}
    instance = Instance.new(
        id=id, workflow=workflow, version=version, initial=args, telemetry_metadata=start_data.get("telemetry_metadata")
    )
    if "started_by" in start_data:
        return instance.changed(started_by=start_data["started_by"])
    return instance


def load(workflow: Any, data: Mapping[str, Any]) -> Instance:
    """Return the instance that ``dump`` has written as ``data``, for the class ``workflow``.

    Raises ``PayloadError`` for a step or a status that does not exist.
    """
    graph: Graph = workflow._graph  # noqa: SLF001 - the class is a graph workflow
    label = f"the stored instance {data.get('id')!r} of {workflow.__name__}"

    def number(key: str) -> int:
        step = graph.by_key.get(key)
        if step is None:
            raise PayloadError(f"{label}: there is no step {key!r}")
        return graph.number[step]

    if data["status"] not in STATUSES:
        raise PayloadError(f"{label}: {data['status']!r} is not a status")
    log = Log()
    for key, event, at, value in data["entries"]:
        timestamp = None
        if at:
            timestamp = datetime.fromisoformat(at)
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
    """Return a copy of the instance in which the data that a user may not see is hidden.

    ``redactor`` has the rules of what the user may see.
    """
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
    """Return a snapshot of ``instance`` for the class ``target``, another version of its class.

    ``new_keys`` maps old step keys to new ones, and to "" the keys of ended steps whose data is left behind.

    Raises ``PayloadError`` with the reason why the graph of ``target`` cannot hold the instance. Either a step does not
    exist there, or a step has started although a step before it has not ended.
    """
    if instance.closed:
        raise PayloadError(f"{instance.id} has ended ({instance.status}): there is nothing to move")
    graph: Graph = target._graph  # noqa: SLF001 - as above
    data = dump(instance)

    def rename_key(key: str, *, live: bool) -> str | None:
        new = new_keys.get(key, key)
        # A step that has ended is needed for its data alone; a live one must continue somewhere.
        if not new and not live:
            return None
        if new not in graph.by_key:
            hint = f"map it with --map {key}=NewStep" + ("" if live else f", or drop its data with --map {key}=")
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
    # The join test of the engine relies on this: what leads to a step that has started has ended for good.
    for i in bits(moved_instance.active | moved_instance.waiting | moved_instance.completed):
        for a in bits(graph.before[i] & moved_instance.live):
            raise PayloadError(
                f"step {graph.keys[i]!r} has started, but in version {target.version} it comes after "
                f"{graph.keys[a]!r}, which has not ended"
            )
    return data
