"""Which IP addresses a server of somebody else may be at.

A name can resolve to anything, and to something else a moment later. So what is checked is the
address that is then connected to.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in ("169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254")
)
"""Where clouds give out the credentials of a machine."""
CARRIER = ipaddress.ip_network("100.64.0.0/10")
"""Shared by providers and overlay networks; neither private nor global."""
NAT64 = ipaddress.ip_network("64:ff9b::/96")
GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
"""Where all global addresses of IPv6 are. Outside are forms that carry an IPv4 address to a gateway
of one's network (compatible, translated, NAT64 of one's network) and old site-local ones."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""How this machine is written; no other name of it counts, because it could lead elsewhere."""


def is_loopback(host: str) -> bool:
    """Return whether a host is written as a loopback name or address of this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return host.strip("[]").lower() in LOOPBACK


def leads_to_loopback(url: str) -> bool:
    """Return whether `url` is on this machine, which must not go through a proxy of the
    environment.

    >>> leads_to_loopback("http://127.0.0.1:8000/v1"), leads_to_loopback("http://localhost")
    (True, True)
    >>> leads_to_loopback("http://127.0.0.1.example"), leads_to_loopback("http://u@localhost")
    (False, False)
    """
    parts = urlsplit(url)
    return "@" not in parts.netloc and is_loopback(parts.hostname or "")


def refusal(address: str, private: bool) -> str | None:
    """Return why nothing may be sent to `address`, or None if it may be. `private` allows loopback
    and private networks.

    >>> refusal("8.8.8.8", private=False)
    >>> refusal("10.0.0.7", private=False)
    '10.0.0.7 is a private address'
    >>> refusal("10.0.0.7", private=True)
    >>> refusal("169.254.169.254", private=True)
    '169.254.169.254 gives out the credentials of a cloud machine'
    >>> refusal("::127.0.0.1", private=False), refusal("2606:4700::1111", private=False)
    ('::127.0.0.1 is a private address', None)
    >>> refusal("::ffff:127.0.0.1", private=False)
    '::ffff:127.0.0.1 is a loopback address'
    """
    ip = _embedded(ipaddress.ip_address(address.partition("%")[0]))
    if ip in METADATA:
        return f"{address} gives out the credentials of a cloud machine"
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return f"{address} is a link-local, multicast or unspecified address"
    if ip.is_loopback:
        return None if private else f"{address} is a loopback address"
    is_foreign_form = ip.version == 6 and ip not in GLOBAL_IPV6
    if ip.is_private or ip in CARRIER or is_foreign_form:
        return None if private else f"{address} is a private address"
    return None if ip.is_global else f"{address} is a reserved address"


def _embedded(ip: IpAddress) -> IpAddress:
    """Return the IPv4 address embedded in an IPv6 address, else `ip` itself."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or ip


def is_listed(url: str, hosts: Iterable[str]) -> bool:
    """Return whether the host of `url` is in `hosts`: names, addresses and networks, each with a
    port or for every port. A name is compared as a name; it is not resolved.

    >>> is_listed("http://10.2.3.4:8000/v1", ["10.2.0.0/16"])
    True
    >>> is_listed("http://gpu:8000/v1", ["gpu:8000"]), is_listed("http://gpu:22/v1", ["gpu:8000"])
    (True, False)
    >>> is_listed("http://[::1]:8000/v1", ["::1"]), is_listed("http://[::1]/v1", ["[::1]:8000"])
    (True, False)
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return any(_covers(entry, host, port) for entry in hosts)


def check_listed(entry: str) -> None:
    """Raise ValueError if `entry` is not a valid entry for `is_listed`."""
    if _network(entry) is None and not _named(entry)[0]:
        raise ValueError(f"{entry!r} is no HOST, HOST:PORT or network such as 10.2.0.0/16")


def _covers(entry: str, host: str, port: int) -> bool:
    network = _network(entry)
    if network is not None:
        try:
            return _embedded(ipaddress.ip_address(host)) in network
        except ValueError:
            return False  # a name
    listed_host, listed_port = _named(entry)
    return host == listed_host and listed_port in (None, port)


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network of an entry, or None if it is not one; an address is a network of one
    address."""
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None


def _named(entry: str) -> tuple[str, int | None]:
    """Return (host, port) of an entry that is not a network; the host is empty if it is not a host
    either."""
    try:
        parts = urlsplit(f"//{entry}")
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return "", None
    return ("" if parts.path or "@" in parts.netloc else host), port


class RefusedAddress(OSError):
    """A host that leads only to addresses which nothing may be sent to."""


def allowed_addresses(url: str, private: bool) -> list[str]:
    """Return the IP addresses of the host of `url` to which something may be sent. Connect to
    these, because the name may resolve differently a moment later. Raises RefusedAddress if all of
    them are refused, OSError if the host does not resolve."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    allowed: list[str] = []
    reasons: list[str] = []
    for *_, address in socket.getaddrinfo(host, parts.port or 443, type=socket.SOCK_STREAM):
        reason = refusal(str(address[0]), private)
        if reason is None:
            allowed.append(str(address[0]))
        else:
            reasons.append(reason)
    if not allowed:
        raise RefusedAddress(f"{host} leads to an address that is refused: {'; '.join(reasons)}")
    return allowed
