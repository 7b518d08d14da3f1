"""Addresses that a list of strangers' may lead to, and those it may not."""

import pytest

from data_prep.laion.addresses import is_public


@pytest.mark.parametrize("address", ["93.184.216.34", "::ffff:8.8.8.8", "2606:2800:220:1::1", "64:ff9b::8.8.8.8"])
def test_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.1.1",
        "127.0.0.1",
        "127.9.9.9",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "fc00::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_not_public(address: str) -> None:
    assert not is_public(address)
