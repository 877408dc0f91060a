"""Django form classes that workflow code names by their path. Nothing here imports Django."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from temporalex_django.core.payloads import codec
from temporalex_django.errors import PayloadError


def form_class(path: str) -> Any:
    """Return the class at that dotted path. Raises ``PayloadError`` if it is missing or is no form."""
    module, _, name = path.rpartition(".")
    try:
        form_type = getattr(import_module(module), name)
    except (ImportError, AttributeError) as exc:
        raise PayloadError(
            f"the form {path} is missing: {exc}. Restore it, or ask again in a new version of the workflow"
        ) from exc
    # Checked by its method, because the in-memory environment runs without Django.
    if not (isinstance(form_type, type) and hasattr(form_type, "is_valid")):
        raise PayloadError(f"{path} is not a form: it has no is_valid()")
    return form_type


def clean_data(path: str, data: Any, *, label: str) -> Any:
    """Return the data as the form cleans them, as JSON. Raises ``PayloadError`` with the errors of the form."""
    if data is not None and not isinstance(data, dict):
        raise PayloadError(f"{label} must be an object with the fields of {path}, not {type(data).__name__}")
    form = form_class(path)(data or {})
    if not form.is_valid():
        error_text = "; ".join(f"{name}: {' '.join(map(str, errors))}" for name, errors in form.errors.items())
        raise PayloadError(f"{label} are not valid: {error_text}")
    return codec.to_plain(dict(form.cleaned_data), label=label)
