"""URLs of strangers: one spelling, and no host inside a machine or network however it is written."""

import ipaddress
from urllib.parse import unquote_to_bytes, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.laion.urls import MOST_CHARACTERS, clean_url, host_of, is_public_host

URLISH = st.lists(
    st.sampled_from(["http://", "https://", "HTTP:", "//", "a.b", "é", "@", ":", "80", "/", "?", "#", "%", "%41", "\\"])
    | st.text(max_size=4),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("http://example.com", "http://example.com/"),
        ("  HTTPS://Example.COM:443/A?b=C#d\n", "https://example.com/A?b=C"),
        ("http://example.com:8080/", "http://example.com:8080/"),
        ("http://example.com.:/a", "http://example.com/a"),
        ("http://example.com?q", "http://example.com/?q"),
        ("http://bücher.example/ä b.jpg", "http://xn--bcher-kva.example/%C3%A4%20b.jpg"),
        (b"http://example.com/caf\xe9.jpg", "http://example.com/caf%E9.jpg"),
        ("http://example.com/100%.jpg?a=%41", "http://example.com/100%25.jpg?a=%41"),
        ('http://example.com/"<x>\\', "http://example.com/%22%3Cx%3E%5C"),
        ("http://a_b.example.com/", "http://a_b.example.com/"),
        ("http://[2606:2800:0220::1]:80/", "http://[2606:2800:220::1]/"),
        ("http://１２７.0.0.1/", "http://127.0.0.1/"),
        ("http://example。com/", "http://example.com/"),
    ],
)
def test_one_spelling(raw: str | bytes, clean: str) -> None:
    assert clean_url(raw) == clean


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "",
        "example.com/a.jpg",
        "//example.com/a.jpg",
        "ftp://example.com/a.jpg",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "javascript:alert(1)",
        "httpſ://example.com/",
        "http:///a.jpg",
        "http://user@example.com/",
        "http://user:word@example.com/",
        "http://example.com\\@127.0.0.1/",
        "http://exa mple.com/",
        "http://example..com/",
        "http://%31%32%37.0.0.1/",
        "http://a℀b.com/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:80:80/",
        "http://[::1/",
        "http://[fe80::1%25eth0]/",
        "http://[::1]x/",
        "http://example.com/a\nb",
        "http://example.com/a\0b",
        "http://example.com/\ud800",
        "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 127 + "com/",
        "http://example.com/" + "a" * MOST_CHARACTERS,
        "http://example.com/" + "é" * (MOST_CHARACTERS // 3),
    ],
)
def test_refused(raw: str | None) -> None:
    assert clean_url(raw) is None


@given(URLISH | URLISH.map(str.encode) | st.binary(max_size=40).map(lambda path: b"http://a.example/" + path))
def test_what_comes_out_is_plain_and_stays(raw: str | bytes) -> None:
    url = clean_url(raw)
    if url is not None:
        assert url.isascii()
        assert url.isprintable()
        assert " " not in url
        assert len(url) <= MOST_CHARACTERS
        assert clean_url(url) == url
        parts = urlsplit(url)
        assert parts.scheme in ("http", "https")
        assert parts.username is None
        assert parts.hostname == host_of(url).strip("[]")
        assert parts.port is None or 1 <= parts.port <= 65535


@given(st.binary(max_size=60))
def test_a_server_sees_the_same_path(path: bytes) -> None:
    path = bytes(byte for byte in path if byte > 32 and byte not in b"\x7f?#%")
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        pass
    else:
        path = path.decode("utf-8").strip().encode()
    url = clean_url(b"http://a.example/" + path + b".jpg")
    assert url is not None
    assert unquote_to_bytes(urlsplit(url).path) == b"/" + path + b".jpg"


@pytest.mark.parametrize("host", ["example.com", "1.com", "0x7f.example.org", "93.184.216.34", "[2606:2800:220::1]"])
def test_public(host: str) -> None:
    assert is_public_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "intranet",
        "a.localhost",
        "printer.local",
        "x.internal",
        "x.home",
        "x.onion",
        "[::1]",
        "[::ffff:a00:1]",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0x7f.1",
        "1.2.3.4.5",
        "8.8.2056",
        "008.8.8.8",
        "256.1.1.1",
        "0x",
    ],
)
def test_inside(host: str) -> None:
    assert not is_public_host(host)


@given(
    st.sampled_from(["127.0.0.0/8", "10.0.0.0/8", "192.168.0.0/16", "172.16.0.0/12", "169.254.0.0/16", "0.0.0.0/8"]),
    st.integers(min_value=0),
)
def test_no_spelling_of_a_private_address_is_public(network: str, number: int) -> None:
    whole = ipaddress.IPv4Network(network)
    address = whole[number % whole.num_addresses]
    a, b, c, d = address.packed
    spellings = [f"{address}", f"{address}.", f"{int(address)}", f"{int(address):#x}", f"0{int(address):o}"]
    spellings += [f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"{a:#x}.{b:#x}.{c:#x}.{d:#x}", f"{a}.{b << 16 | c << 8 | d}"]
    spellings += [f"{a:03d}.{b:03d}.{c:03d}.{d:03d}", f"[::ffff:{address}]", f"[64:ff9b::{address}]"]
    spellings.append(str(address).translate({ord(digit): ord("０") + int(digit) for digit in "0123456789"}))
    for spelling in spellings:
        url = clean_url(f"http://{spelling}/a.jpg")
        assert url is None or not is_public_host(host_of(url)), spelling
