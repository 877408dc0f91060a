"""Checks of the values of settings that have more than a type. They know no settings."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

#: Item of ``TRUSTED_PROXIES`` for a proxy that connects over a Unix socket, which has no address.
UNIX = "unix"


def has_invalid_proxy(value: Any) -> bool:
    """Return True if an item of ``TRUSTED_PROXIES`` is neither an address, a network nor ``UNIX``."""
    try:
        for proxy in value:
            if proxy != UNIX:
                ipaddress.ip_network(proxy, strict=False)
    except ValueError:
        return True
    return False


def is_invalid_header(value: Any) -> bool:
    """Return True if the value cannot be the name of a header."""
    return value is not None and not (value.isascii() and value.replace("-", "").isalnum())


#: The keys of ``ALERTS``, and the types of their values.
_ALERT_KEYS = {"MAIL": list, "CALL": str, "FROM": str, "BASE_URL": str, "NAME": str, "HEARTBEAT_URL": str}
ALERTS_KIND = "a dict with MAIL or CALL, and no other keys than MAIL, CALL, FROM, BASE_URL, NAME and HEARTBEAT_URL"


def is_invalid_alerts(value: Any) -> bool:
    """Return True if ``ALERTS`` has an unknown key or a value of a wrong type, or names nobody."""
    if any(key not in _ALERT_KEYS or not isinstance(entry, _ALERT_KEYS[key]) for key, entry in value.items()):
        return True
    if any(not isinstance(address, str) or "@" not in address for address in value.get("MAIL", ())):
        return True
    addresses = [value[key] for key in ("BASE_URL", "HEARTBEAT_URL") if key in value]
    if any(not address.startswith(("http://", "https://")) for address in addresses):
        return True
    return bool(value) and not (value.get("MAIL") or value.get("CALL"))


#: The keys of ``CLUSTER``, and the types of their values.
_CLUSTER_KEYS: dict[str, Any] = {
    "ADDRESS": str,
    "NAMESPACE": str,
    "TLS": (bool, Mapping),
    "API_KEY": (str, Callable),
    "PREFIX": str,
}
_TLS_KEYS = {"CA", "CERT", "KEY"}
CLUSTER_KIND = (
    "a dict with the texts ADDRESS, NAMESPACE, API_KEY (or a function that returns it) and PREFIX (printable, without "
    "'/'), and TLS (True, False or a dict of the paths CA, CERT and KEY)"
)


def is_invalid_cluster(value: Any) -> bool:
    """Return True if ``CLUSTER`` has an unknown key or a value of a wrong type."""
    if any(key not in _CLUSTER_KEYS or not isinstance(entry, _CLUSTER_KEYS[key]) for key, entry in value.items()):
        return True
    tls, prefix = value.get("TLS", False), value.get("PREFIX", "")
    if not prefix.isprintable() or "/" in prefix:
        return True
    return isinstance(tls, Mapping) and any(
        key not in _TLS_KEYS or not isinstance(path, str) for key, path in tls.items()
    )
