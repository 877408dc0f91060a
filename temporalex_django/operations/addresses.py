"""The address and the request id of a client, for the audit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from temporalex_django.conf import UNIX, get_settings

#: Longest request id that is kept, in characters.
_MAX_ID_LENGTH = 64
_INVALID_ID_CHARS = re.compile(r"[^A-Za-z0-9_.:/+=@-]")
Address = IPv4Address | IPv6Address


def client_address(meta: Mapping[str, Any]) -> str | None:
    """Return the address of the client of a request, from ``request.META``, or None if it has none.

    A client can write anything into ``X-Forwarded-For``. The header is read from its end, for as long as
    ``TRUSTED_PROXIES`` contains the address that added the entry.
    """
    trusted_proxies = get_settings().TRUSTED_PROXIES
    networks = [ip_network(proxy, strict=False) for proxy in trusted_proxies if proxy != UNIX]
    address = _parse_address(meta.get("REMOTE_ADDR"))
    # Requests over a Unix socket have no address, so the setting has a word of its own for them.
    is_trusted = any(address in network for network in networks) if address is not None else UNIX in trusted_proxies
    if is_trusted:
        claims = str(meta.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        address = _first_untrusted(reversed(claims), networks, address)
    return None if address is None else str(address)


def request_id(meta: Mapping[str, Any]) -> str:
    """Return the id of the request from the header that ``REQUEST_ID_HEADER`` names.

    Characters that do not belong in an id are removed. The id is empty where there is no such header.
    """
    header = get_settings().REQUEST_ID_HEADER
    if header is None:
        return ""
    header_text = str(meta.get(f"HTTP_{header.upper().replace('-', '_')}") or "")
    return _INVALID_ID_CHARS.sub("", header_text[:_MAX_ID_LENGTH])


def _first_untrusted(claims: Iterable[str], networks: list[Any], address: Address | None) -> Address | None:
    """Return the first address from the end that is not a trusted proxy.

    If an entry is not an address, return the last one that could be parsed.
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
    """Parse an address, or return None if the text is not one.

    A zone, a port and brackets are ignored. An IPv4 address inside IPv6 is returned as IPv4.
    """
    text = str(text or "").strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    # One colon is a port; an IPv6 address without brackets has at least two.
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed_address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(parsed_address, "ipv4_mapped", None) or parsed_address
