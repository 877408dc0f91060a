"""The exporters of metrics by name, which the setting ``METRICS`` and commands install in a process."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from temporalex_django.errors import NotConfigured
from temporalex_django.telemetry.definitions import EXPORTERS
from temporalex_django.telemetry.recording import Exporter, recorder

_exporters: dict[str, Exporter] = {}


def install(names: Sequence[str]) -> None:
    """Install the exporters with these names in this process; one that is installed already stays.

    Raises ``NotConfigured`` if the extra of an exporter is not installed.
    """
    for name in names:
        if name not in _exporters:
            _exporters[name] = _create(name)
            recorder.install(_exporters[name])


def uninstall(name: str) -> None:
    """Remove an exporter from this process, if it is installed; the values that it has recorded are lost."""
    if (exporter := _exporters.pop(name, None)) is not None:
        recorder.remove(exporter)


def installed(name: str) -> Exporter | None:
    """Return the exporter with this name, or None if it is not installed in this process."""
    return _exporters.get(name)


def _create(name: str) -> Exporter:
    library = EXPORTERS[name]
    try:
        import_module(library)
    except ImportError as exc:
        raise NotConfigured(
            f"the exporter {name!r} of metrics needs the module {library}: install temporalex-django[{name}]"
        ) from exc
    exporter: Exporter = import_module(f"temporalex_django.contrib.{name}").create()
    return exporter
