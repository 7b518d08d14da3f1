"""Fetches one picture from an address nobody vouches for: bounded in time and bytes, from public addresses alone.

    data = fetch("https://example.org/cat.jpg", Limits(), timeout=10, agent="img2dataset")

img2dataset's own fetch (urllib as it is) reads `file:` and `data:`, loopback and private hosts, bodies of any size and
servers that drip for ever. Here the host's name is resolved once and the connection goes to just that address, so that
no second answer of a name server comes between the check and the connection; a redirect is checked like a first
address. Proxies named in the environment are not used: they would resolve names themselves, and what they reach inside
a network would be checked by nobody.

Standard library only: it runs in img2dataset's environment.
"""

import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from typing import Any

from data_prep.laion.addresses import is_public
from data_prep.laion.robots import opted_out

_PIECE = 1 << 16
_GZIP = b"\x1f\x8b"  # with which no picture begins
_MOST_MEMBERS = 16  # of a gzip, which parallel packers write; for each one what follows is copied
_AGENT = "Mozilla/5.0 (X11; Ubuntu; Linux x86_64; rv:72.0) Gecko/20100101 Firefox/72.0 (compatible; {}; +{})"
_ABOUT = "https://github.com/rom1504/img2dataset"  # where the program that a server's owner sees is explained


@dataclass(frozen=True)
class Limits:
    """What one picture may cost. `deadline` is for all of it, redirects included, in seconds."""

    max_bytes: int = 32 << 20
    deadline: float = 60.0
    allow_private: bool = False


class FetchError(Exception):
    """Why there is no picture, in one of a few words (reasons.py says which pass with time)."""


def fetch(url: str, limits: Limits, timeout: float, agent: str) -> bytes:
    """The body at `url`, whole.

    Args:
        timeout: seconds without any byte.
        agent: the robot's name, told to servers and looked for in their X-Robots-Tag headers.

    Raises:
        FetchError: anything else.
    """
    ends = time.monotonic() + limits.deadline
    try:
        request = urllib.request.Request(url, headers={"User-Agent": _AGENT.format(agent, _ABOUT)})
        with _opener(limits, ends, agent).open(request, timeout=timeout) as answer:
            if _opted_out(answer.headers, agent):
                raise FetchError("opted out")
            return _unpacked(_body(answer, limits.max_bytes), limits.max_bytes)
    except FetchError:
        raise
    except Exception as error:
        raise FetchError(_reason(error, ends)) from error


def _opener(limits: Limits, ends: float, agent: str) -> urllib.request.OpenerDirector:
    """urllib with http and https alone, over connections of ours."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        _Handler(limits, ends),
        _Redirects(agent),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


class _Handler(urllib.request.AbstractHTTPHandler):
    """Opens http and https addresses."""

    def __init__(self, limits: Limits, ends: float) -> None:
        super().__init__()
        self._limits, self._ends = limits, ends

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(_Connection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(_SecureConnection, request)

    def _open(self, kind: Any, request: urllib.request.Request) -> http.client.HTTPResponse:
        if "@" in request.host:  # a name and password, or a trick about where the host begins; urllib looks it all up
            raise FetchError("address refused")
        return self.do_open(kind, request, limits=self._limits, ends=self._ends)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, each time unless the answer forbids the use."""

    max_redirections = 5
    max_repeats = 2

    def __init__(self, agent: str) -> None:
        self._agent = agent

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if _opted_out(headers, self._agent):
            raise FetchError("opted out")
        fp.close()  # urllib would read its body, of whatever size
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Answer(http.client.HTTPResponse):
    """An answer; those that only inform and come before it (102, 103) are passed over, as http.client does with 100."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not http.HTTPStatus.SWITCHING_PROTOCOLS < found[1] < http.HTTPStatus.OK:
                return found
            http.client.parse_headers(self.fp)

    def _read_and_discard_trailer(self) -> None:
        """Nothing: before the trailer of a body in chunks the body is whole, and the connection is not used again."""


class _Connection(http.client.HTTPConnection):
    """A connection to a checked address, with an end."""

    response_class = _Answer

    def __init__(self, host: str, limits: Limits, ends: float, **more: Any) -> None:
        super().__init__(host, **more)
        self._limits, self._ends = limits, ends

    def connect(self) -> None:
        self.sock = _connect(self, self._limits, self._ends)


class _SecureConnection(http.client.HTTPSConnection):
    """The same with TLS; the certificate is the name's, though the connection goes to a number."""

    response_class = _Answer

    def __init__(self, host: str, limits: Limits, ends: float, **more: Any) -> None:
        super().__init__(host, **more)
        self._limits, self._ends = limits, ends

    def connect(self) -> None:
        plain = _connect(self, self._limits, self._ends)
        try:
            secure = _tls().wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise
        assert isinstance(secure, _SecureSocket)
        secure.patience, secure.ends = plain.patience, plain.ends
        self.sock = secure


class _Bounded:
    """A socket that waits neither longer than its patience for a byte, nor past the end of all."""

    patience: float
    ends: float

    def recv_into(self, *args: Any) -> int:
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline")
        self.settimeout(min(self.patience, left))  # type: ignore[attr-defined]
        received: int = super().recv_into(*args)  # type: ignore[misc]
        return received


class _Socket(_Bounded, socket.socket):
    pass


class _SecureSocket(_Bounded, ssl.SSLSocket):
    pass


def _tls() -> ssl.SSLContext:
    """The machine's certificates, loaded once: it takes tens of milliseconds."""
    global _context
    if _context is None:
        context = ssl.create_default_context()
        context.sslsocket_class = _SecureSocket
        _context = context
    return _context


_context: ssl.SSLContext | None = None


def _connect(connection: http.client.HTTPConnection, limits: Limits, ends: float) -> _Socket:
    """A socket connected to the host, whose every address must be allowed: a name with one private address is a trick.

    Raises:
        FetchError: an address that is not public, or no address.
        OSError: none of the first three answers.
    """
    try:
        found = socket.getaddrinfo(connection.host, connection.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise FetchError("DNS") from error
    if not limits.allow_private and not all(is_public(str(address[0])) for *_, address in found):
        raise FetchError("address refused")
    failed: OSError = OSError("no address")
    for family, kind, protocol, _, address in found[:3]:
        sock = _Socket(family, kind, protocol)
        sock.patience, sock.ends = float(connection.timeout or limits.deadline), ends
        try:
            sock.settimeout(max(min(sock.patience, ends - time.monotonic()), 0.001))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            sock.close()
            failed = error
    raise failed


def _opted_out(headers: http.client.HTTPMessage, agent: str) -> bool:
    return opted_out({name: headers.get_all(name, []) for name in headers}, agent)


def _body(answer: http.client.HTTPResponse, most: int) -> bytes:
    """All of the body, no longer than `most` bytes, and as long as its headers say."""
    length = answer.length  # None where the server does not say; what is left of it is not counted by read1
    if length is not None and length > most:
        raise FetchError("too large")
    pieces, size = [], 0
    while length is None or size < length:
        piece = answer.read1(_PIECE)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise FetchError("too large")
    if length is not None and size < length:
        raise FetchError("cut short")
    if not size:
        raise FetchError("empty")
    return b"".join(pieces)


def _unpacked(data: bytes, most: int) -> bytes:
    """The body, which some servers pack by gzip though nobody asked; what their headers say of it is often wrong."""
    if not data.startswith(_GZIP):
        return data
    picture, rest = b"", data
    for _ in range(_MOST_MEMBERS):
        if not rest.startswith(_GZIP):
            break  # bytes behind the last member say nothing
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            picture += unpacker.decompress(rest, most + 1 - len(picture))
        except zlib.error:
            return data  # which is no picture either; the decoder says so
        if len(picture) > most:
            raise FetchError("too large")
        if not unpacker.eof:
            raise FetchError("cut short")
        rest = unpacker.unused_data
    if not picture:
        raise FetchError("empty")
    return picture


def _reason(error: BaseException, ends: float) -> str:
    """An error of urllib, http, TLS or the network in a word or two."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        redirect = error.code in (301, 302, 303, 307, 308)
        return "redirects" if redirect else f"HTTP {error.code}"
    if isinstance(error, urllib.error.URLError):
        if not isinstance(error.reason, BaseException):
            return "address refused"  # a redirect to ftp:, file:, data: or nothing known
        error = error.reason
    if time.monotonic() >= ends:
        return "deadline"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate"
    if isinstance(error, http.client.IncompleteRead):
        return "cut short"
    if isinstance(error, OSError):  # reset, refused, unreachable, closed without an answer
        return "connection"
    return "bad address" if isinstance(error, (ValueError, http.client.InvalidURL)) else "bad answer"
