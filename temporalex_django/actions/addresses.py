"""From where somebody acts, for the audit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from temporalex_django.conf import UNIX, get_settings

#: Of an id of a request.
_MAX_ID_LENGTH = 64
_INVALID_ID_CHARS = re.compile(r"[^A-Za-z0-9_.:/+=@-]")
Address = IPv4Address | IPv6Address


def client_address(meta: Mapping[str, Any]) -> str | None:
    """The address of a request's client, by ``request.META``; None where it has none.

    ``X-Forwarded-For`` is a claim of whoever sent it. It is read from its end for as long as ``TRUSTED_PROXIES`` names
    who made it.
    """
    trusted_proxies = get_settings().TRUSTED_PROXIES
    networks = [ip_network(proxy, strict=False) for proxy in trusted_proxies if proxy != UNIX]
    address = _parse_address(meta.get("REMOTE_ADDR"))
    is_trusted = any(address in network for network in networks) if address is not None else UNIX in trusted_proxies
    if is_trusted:
        claims = str(meta.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        address = _first_untrusted(reversed(claims), networks, address)
    return None if address is None else str(address)


def request_id(meta: Mapping[str, Any]) -> str:
    """What the request is called by ``REQUEST_ID_HEADER``, without what no id has in it; empty where it has none."""
    header = get_settings().REQUEST_ID_HEADER
    if header is None:
        return ""
    header_text = str(meta.get(f"HTTP_{header.upper().replace('-', '_')}") or "")
    return _INVALID_ID_CHARS.sub("", header_text[:_MAX_ID_LENGTH])


def _first_untrusted(claims: Iterable[str], networks: list[Any], address: Address | None) -> Address | None:
    """Whoever is the first from the end that is no trusted proxy.

    The last that was understood where a claim is no address.
    """
    for claim in claims:
        parsed_address = _parse_address(claim)
        if parsed_address is None:
            return address
        address = parsed_address
        if not any(parsed_address in network for network in networks):
            return address
    return address


def _parse_address(text: Any) -> Address | None:
    """None for what is none. A zone, a port and brackets are left out; IPv4 in IPv6 is IPv4."""
    text = str(text or "").strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed_address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed_address, "ipv4_mapped", None) or parsed_address
