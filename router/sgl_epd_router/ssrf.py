"""Which addresses may become workers when somebody asks over HTTP.

The router sends whole requests, and its own key, to every worker; and whoever can add a worker can make it call any
address it can reach. So a worker must lie in loopback, private or shared address space (where pools live), or in a
network that `--worker-networks` names. Link-local (cloud metadata services) and other special addresses are refused
even if such a network contains them. Workers named by flags are the operator's own word and are not checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from sgl_epd.errors import BadRequestError, PermissionDeniedError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_POOL_NETWORKS = tuple(
    map(
        ipaddress.ip_network,
        ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
    )
)
# Metadata services that hide in private space: Alibaba, Oracle, AWS over IPv6.
_METADATA = frozenset(map(ipaddress.ip_address, ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")))
_RESOLVE_TIMEOUT_S = 5.0


class WorkerGuard:
    """Decides by address. `networks` are CIDR strings; "*" allows any unicast address."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        names = tuple(networks)
        self._anywhere = "*" in names
        self._networks: tuple[Network, ...] = _POOL_NETWORKS + tuple(
            ipaddress.ip_network(name) for name in names if name != "*"
        )

    def check_address(self, address: Address) -> None:
        """Raises `PermissionDeniedError` (403)."""
        plain = getattr(address, "ipv4_mapped", None) or address
        if reason := _special(plain):
            raise PermissionDeniedError(f"a worker may not be at {address}: {reason}", param="url")
        if not self._anywhere and not any(plain in network for network in self._networks):
            raise PermissionDeniedError(
                f"a worker may not be at {address}: it is outside the private networks and --worker-networks",
                param="url",
            )

    async def check_url(self, url: str) -> None:
        """Resolve the host of a worker's URL and check every address that it stands for. Raises 400 or 403."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        try:
            addresses: Iterable[Address] = [ipaddress.ip_address(host)]
        except ValueError:
            addresses = await _resolve(host, parts.port or 80)
        for address in addresses:
            self.check_address(address)


def _special(address: Address) -> str | None:
    """Why an address is never a worker's."""
    if address.is_unspecified:
        return "the unspecified address"
    if address.is_link_local:
        return "link-local, where cloud metadata services are"
    if address in _METADATA:
        return "a cloud metadata service"
    if address.is_multicast:
        return "a multicast address"
    if address.is_reserved and not address.is_loopback:
        return "a reserved address"
    return None


async def _resolve(host: str, port: int) -> list[Address]:
    try:
        async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        raise BadRequestError(f"the worker's host {host!r} cannot be resolved", param="url") from error
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
