"""The fetch against a server that misbehaves: each picture, or the one word that says why there is none."""

import socket
from collections.abc import Iterator

import pytest
from server import OPT_OUTS, MisbehavingServer, jpeg

from data_prep.laion import http
from data_prep.laion.http import FetchError, Limits, fetch

HERE = Limits(max_bytes=1 << 20, deadline=1.5, allow_private=True)


@pytest.fixture(scope="module")
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as server:
        yield server


def get(url: str, limits: Limits = HERE, timeout: float = 0.5) -> bytes:
    return fetch(url, limits, timeout, "img2dataset")


@pytest.mark.parametrize(
    "kind", ["good", "moved", "slow", "informed", "gzip", "gzip-unsaid", "said-gzip", "gzip-members", "slow-trailer"]
)
def test_a_picture_comes_whole(server: MisbehavingServer, kind: str) -> None:
    assert get(server.url(f"/{kind}/1")) == jpeg(1)


def test_what_only_begins_as_gzip_is_left_to_the_decoder(server: MisbehavingServer) -> None:
    assert get(server.url("/gzip-bad/1")) == b"\x1f\x8b" + bytes(900)


def test_a_proxy_of_the_environment_is_not_used(server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert get(server.url("/good/2")) == jpeg(2)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/404/1", "HTTP 404"),
        ("/503/1", "HTTP 503"),
        ("/stall/1", "timeout"),
        ("/drip/1", "deadline"),
        ("/drip-headers/1", "deadline"),
        ("/reset/1", "connection"),
        ("/close/1", "connection"),
        ("/garbage/1", "bad answer"),
        ("/truncated/1", "cut short"),
        ("/empty/1", "empty"),
        ("/gzip-cut/1", "cut short"),
        ("/gzip-empty/1", "empty"),
        ("/gzip-bomb/1", "too large"),
        ("/gzip-bomb-last/1", "too large"),
        ("/long/1", "too large"),
        ("/endless/1", "too large"),
        ("/loop/1", "redirects"),
        ("/to-file/1", "redirects"),
        ("/to-data/1", "redirects"),
        ("/to-user/1", "address refused"),
        ("/informs/1", "deadline"),
        *((f"/{kind}/1", "opted out") for kind in OPT_OUTS),
    ],
)
def test_a_failure_is_named(server: MisbehavingServer, path: str, reason: str) -> None:
    with pytest.raises(FetchError) as caught:
        get(server.url(path))
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "data:,abc", "ftp://127.0.0.1/a", "/etc/hostname", "http://", "http://a@127.0.0.1/"]
)
def test_only_http_addresses_are_opened(url: str) -> None:
    with pytest.raises(FetchError, match=r"^(address refused|bad address)$"):
        get(url)


def test_private_addresses_are_refused_under_every_name(
    server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.server_address[1]
    before = server.log.total()
    strict = Limits(deadline=2.0)
    real = socket.getaddrinfo

    def resolve(host: str, *rest: object, **more: object) -> object:
        """A name server that sends rebind.test here, beside a public address."""
        if host != "rebind.test":
            return real(host, *rest, **more)  # type: ignore[arg-type]
        public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port))
        return [public, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for host in (
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
        "rebind.test",
    ):
        with pytest.raises(FetchError, match=r"^address refused$"):
            get(f"http://{host}:{port}/good/1", strict)
    assert server.log.total() == before


def test_a_redirect_to_a_private_address_is_refused(server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own address taken for a public one, so that its redirect can be followed."""
    monkeypatch.setattr(http, "is_public", lambda address: address == "127.0.0.1")
    with pytest.raises(FetchError, match=r"^address refused$"):
        get(server.url("/to-metadata/1"), Limits(deadline=2.0))
