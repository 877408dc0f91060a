"""The payload codec of a project, with errors that callers and interfaces can handle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temporalex_django.errors import PayloadError, TemporalexError

if TYPE_CHECKING:
    from temporalex_django.core.payloads.codec import PayloadCodec


class ProjectCodec:
    """A wrapper of a payload codec that the project has written, at the dotted path ``path``.

    Exceptions of the codec become ``PayloadError``, which callers and interfaces can handle. Errors of this package are
    raised as they are.
    """

    def __init__(self, path: str, codec: PayloadCodec) -> None:
        self._path = path
        self._encode, self._decode = codec.encode, codec.decode

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except TemporalexError:
            raise
        except Exception as exc:
            raise self._error("encode a payload", exc) from exc

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except TemporalexError:
            raise
        except Exception as exc:
            raise self._error("decode a stored payload", exc) from exc

    def _error(self, operation: str, exc: Exception) -> PayloadError:
        # Only the type: the message of a codec's exception may quote the payload.
        return PayloadError(f"the codec {self._path} cannot {operation}: {type(exc).__name__}")
