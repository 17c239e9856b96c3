"""Spellings of private addresses that no list of the standard library has, and tools of agents that
reach another route than their own."""

from __future__ import annotations

import itertools
import re

import pytest

from thumbwheel.core.addresses import refusal
from thumbwheel.core.errors import InputError
from thumbwheel.server.api.routers import operations
from thumbwheel.server.mcp_tools import tools

CARRIERS = {
    "IPv4-compatible": "::127.0.0.1",
    "compatible, metadata": "::a9fe:a9fe",
    "IPv4-mapped": "::ffff:127.0.0.1",
    "IPv4-translated": "::ffff:0:127.0.0.1",
    "NAT64": "64:ff9b::7f00:1",
    "NAT64, metadata": "64:ff9b::a9fe:a9fe",
    "NAT64 of one's network": "64:ff9b:1::10.0.0.1",
    "6to4": "2002:7f00:1::",
    "Teredo": "2001:0:7f00:1::",
    "site-local": "fec0::1",
    "unique local": "fd12:3456::1",
    "link-local with a zone": "fe80::1%lo",
    "loopback with a zone": "::1%lo",
    "unspecified": "::",
    "IPv4 unspecified": "0.0.0.0",
    "this network": "0.1.2.3",
    "broadcast": "255.255.255.255",
    "carrier": "100.64.0.1",
    "benchmark": "198.18.0.1",
    "never given out": "4000::1",
}
PUBLIC = ("8.8.8.8", "2606:4700:4700::1111", "2a00:1450:4001:82a::200e", "::ffff:8.8.8.8")


@pytest.mark.parametrize("form", CARRIERS)
def test_no_spelling_of_a_private_address_is_public(form: str) -> None:
    assert refusal(CARRIERS[form], private=False) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_stay_public(address: str) -> None:
    assert refusal(address, private=False) is None


def test_a_tool_reaches_no_other_route_than_its_own() -> None:
    """The settings offer tools by their verbs, so a name in the path of one must not lead to a
    route that needs another verb."""
    tried = 0
    for tool in tools().values():
        route = tool.operation.route
        names = [parameter.name for parameter in tool.operation.path_parameters]
        for other, name in itertools.product(operations().values(), names):
            if other.route.method != route.method or other is tool.operation:
                continue
            middle = re.sub(r"{\w+}", "x", other.route.path).removeprefix("/api/agents/")
            arguments = dict.fromkeys(names, "x") | {name: middle}
            with pytest.raises(InputError, match="no single part of a path"):
                tool.request(arguments)
            tried += 1
    assert tried > 1000
