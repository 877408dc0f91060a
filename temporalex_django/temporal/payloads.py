"""Payloads on a cluster: a payload converter of the SDK that uses the codec of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter, PayloadConverter

from temporalex_django.core.payloads import codec
from temporalex_django.core.payloads.codec import JsonCodec, PayloadCodec
from temporalex_django.errors import PayloadError

_JSON: Final = b"json/plain"
_NULL: Final = b"binary/null"
#: Encoding of payloads that a codec of your own has written.
_OWN: Final = b"binary/temporalex"


class Payloads:
    """Writes plain data as payloads of a cluster, and reads them.

    With the default codec the payloads are JSON, as other SDKs write them. With another codec, their metadata names an
    encoding that only this package reads.
    """

    def __init__(self, payload_codec: PayloadCodec | None = None) -> None:
        self._codec = payload_codec or JsonCodec()
        self._encoding = _JSON if isinstance(self._codec, JsonCodec) else _OWN

    def encode(self, value: Any, **metadata: bytes) -> Payload:
        """Return plain data as a payload, to whose metadata ``metadata`` is added."""
        return Payload(metadata={"encoding": self._encoding, **metadata}, data=self._codec.encode(value))

    def decode(self, payload: Payload) -> Any:
        """Return the plain data of a payload. Raises ``PayloadError`` if it was not written for this codec."""
        encoding = payload.metadata.get("encoding")
        if encoding == self._encoding:
            return self._codec.decode(payload.data)
        if encoding == _JSON:
            return JsonCodec().decode(payload.data)
        if encoding == _NULL:
            return None
        name = "none" if encoding is None else encoding.decode("utf-8", "replace")
        raise PayloadError(
            f"a payload has the encoding {name!r}, which this process does not read: "
            f"it reads {self._encoding.decode()!r} and JSON. Give the worker the codec that wrote it"
        )

    def data_converter(self, converter: DataConverter | None = None) -> DataConverter:
        """Return ``converter`` (None: the default one of the SDK) with this codec as its payload converter.

        Its ``payload_codec``, which may encrypt, stays as it is.
        """
        payloads = self

        class Converter(TemporalexPayloadConverter):
            def __init__(self) -> None:
                super().__init__(payloads)

        base = converter or DataConverter.default
        return DataConverter(
            payload_converter_class=Converter,
            payload_codec=base.payload_codec,
            failure_converter_class=base.failure_converter_class,
            external_storage=base.external_storage,
        )


class TemporalexPayloadConverter(PayloadConverter):
    """The payload converter of the SDK that uses the codec of this package: a value has one form on each host."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        return [
            value.payload if isinstance(value, RawValue) else self._payloads.encode(codec.to_plain(value))
            for value in values
        ]

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        return [
            RawValue(payload) if hint is RawValue else codec.convert(self._payloads.decode(payload), hint)
            for payload, hint in zip(payloads, type_hints or [Any] * len(payloads), strict=False)
        ]
