"""From where somebody acts, for the audit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from temporalex_django.conf import UNIX, get_settings

#: Of an id of a request.
_LONGEST = 64
_NO_ID = re.compile(r"[^A-Za-z0-9_.:/+=@-]")
Address = IPv4Address | IPv6Address


def client_address(meta: Mapping[str, Any]) -> str | None:
    """The address of a request's client, by ``request.META``; None where it has none.

    ``X-Forwarded-For`` is a claim of whoever sent it. It is read from its end for as long as ``TRUSTED_PROXIES`` names
    who made it.
    """
    trusted = get_settings().TRUSTED_PROXIES
    networks = [ip_network(one, strict=False) for one in trusted if one != UNIX]
    here = _address(meta.get("REMOTE_ADDR"))
    believed = any(here in network for network in networks) if here is not None else UNIX in trusted
    if believed:
        claims = str(meta.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        here = _first_stranger(reversed(claims), networks, here)
    return None if here is None else str(here)


def request_id(meta: Mapping[str, Any]) -> str:
    """What the request is called by ``REQUEST_ID_HEADER``, without what no id has in it; empty where it has none."""
    header = get_settings().REQUEST_ID_HEADER
    if header is None:
        return ""
    claimed = str(meta.get(f"HTTP_{header.upper().replace('-', '_')}") or "")
    return _NO_ID.sub("", claimed[:_LONGEST])


def _first_stranger(claims: Iterable[str], networks: list[Any], here: Address | None) -> Address | None:
    """Whoever is the first from the end that is no trusted proxy.

    The last that was understood where a claim is no address.
    """
    for claim in claims:
        found = _address(claim)
        if found is None:
            return here
        here = found
        if not any(found in network for network in networks):
            return here
    return here


def _address(text: Any) -> Address | None:
    """None for what is none. A zone, a port and brackets are left out; IPv4 in IPv6 is IPv4."""
    text = str(text or "").strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
