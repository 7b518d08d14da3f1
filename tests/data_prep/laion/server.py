"""A web server that misbehaves in every way a picture's address may, and keeps its own log of what was asked for.

    with MisbehavingServer() as server: server.url("/good/7"); server.log.count("/good/7")

The path's first part says what happens (see `BEHAVIOURS`); the rest of it makes addresses differ.
"""

import gzip
import io
import os
import socket
import socketserver
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import numpy as np
from PIL import Image

FOREVER = 3600.0  # how long a stalling answer would last; the server's end cuts it short


def jpeg(place: int, orientation: int = 1) -> bytes:
    """A picture of 320 x 280 pixels as stored, red above and blue below, with the place's bits as 16 green bars."""
    pixels = np.zeros((280, 320, 3), np.uint8)
    pixels[:140], pixels[140:] = (200, 0, 0), (0, 0, 200)
    for bit in range(16):
        pixels[:, 20 * bit : 20 * bit + 20, 1] = 100 * (place >> bit & 1)
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90, **({"exif": exif} if orientation != 1 else {}))
    return buffer.getvalue()


def late_exif(place: int) -> bytes:
    """A turned picture whose EXIF stands behind 120 kB of a profile, as large as those of printers."""
    data = jpeg(place, orientation=3)
    profile = b"ICC_PROFILE\0\1\1".ljust(60_000, b"\0")
    return data[:2] + (b"\xff\xe2" + struct.pack(">H", len(profile) + 2) + profile) * 2 + data[2:]


def sixteen_bits(kind: str) -> bytes:
    """A grey picture of 16 bits, 300 x 260, from black at the left to white at the right."""
    ramp = np.tile(np.linspace(0, 65535, 300).astype(np.uint16), (260, 1))
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, kind)
    return buffer.getvalue()


def huge_png(side: int = 12_000) -> bytes:
    """A PNG of side x side RGBA pixels in few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + 4 * side)
    packed = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


class MisbehavingServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens on a free port of 127.0.0.1 while the block runs; `log` counts the requests by path."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.log: Counter[str] = Counter()
        self.over = threading.Event()
        self.huge = huge_png()
        self.down = False  # every request is answered by 503
        self.healed = False  # /reset gives pictures
        self._lock = threading.Lock()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def count(self, path: str) -> int:
        """How often the path was asked for, this time included."""
        with self._lock:
            self.log[path] += 1
            return self.log[path]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what this server is for."""

    def __enter__(self) -> "MisbehavingServer":
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: MisbehavingServer

    def do_GET(self) -> None:
        times = self.server.count(self.path)
        kind = self.path.split("/")[1]
        self.place = int(self.path.rsplit("/", 1)[1])
        if self.server.down:
            return self.send_error(503)
        if self.server.healed and kind == "reset":
            return self.body(jpeg(self.place))
        if kind == "flaky":  # works from the third time on
            return self.send_error(503) if times < 3 else self.body(jpeg(self.place))
        if kind.isdigit():
            return self.send_error(int(kind))
        if kind in OPT_OUTS:
            return self.body(jpeg(self.place), OPT_OUTS[kind])
        return BEHAVIOURS[kind](self)

    def body(self, data: bytes, headers: tuple[tuple[str, str], ...] = (), length: int | None = None) -> None:
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)

    def redirect(self, to: str) -> None:
        self.send_response(302)
        self.send_header("Location", to)
        self.end_headers()

    def wait(self, seconds: float = FOREVER) -> None:
        self.server.over.wait(seconds)

    def informed(self) -> None:
        """A picture after answers that only inform."""
        self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n" + b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 2)
        self.body(jpeg(self.place))

    def inform_for_ever(self) -> None:
        while not self.server.over.is_set():
            self.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            self.wait(0.1)

    def drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.over.is_set():
            self.wfile.write(b"x")
            self.wait(0.1)

    def drip_headers(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        while not self.server.over.is_set():
            self.wfile.write(b"x")
            self.wait(0.1)

    def reset(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc")
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())  # with this linger, a reset

    def endless(self) -> None:
        """A chunked body of 200 MB whose length no header says."""
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(200):
            self.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def slow_trailer(self) -> None:
        """A picture in chunks, whose trailer never ends."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        data = jpeg(self.place)
        self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n0\r\n")
        while not self.server.over.is_set():
            self.wfile.write(b"X-Long: x\r\n")
            self.wait(0.1)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


OPT_OUTS: dict[str, tuple[tuple[str, str], ...]] = {
    "noai": (("X-Robots-Tag", "noai"),),
    "noai-behind": (("X-Robots-Tag", "max-image-preview:large, noai"),),
    "noai-second": (("X-Robots-Tag", "all"), ("x-robots-tag", "NoImageAI")),
    "noai-agent": (("X-Robots-Tag", "img2dataset: noindex"),),
    "tdm": (("TDM-Reservation", "1"),),
}
BEHAVIOURS: dict[str, Callable[[_Handler], None]] = {
    "good": lambda it: it.body(jpeg(it.place)),
    "slow": lambda it: (it.wait(0.2), it.body(jpeg(it.place)))[1],
    "informed": _Handler.informed,
    "informs": _Handler.inform_for_ever,
    "gzip": lambda it: it.body(gzip.compress(jpeg(it.place)), (("Content-Encoding", "gzip"),)),
    "gzip-unsaid": lambda it: it.body(gzip.compress(jpeg(it.place))),
    "said-gzip": lambda it: it.body(jpeg(it.place), (("Content-Encoding", "gzip"),)),
    "gzip-cut": lambda it: it.body(gzip.compress(jpeg(it.place))[:-100]),
    "gzip-members": lambda it: it.body(b"".join(map(gzip.compress, (b"", jpeg(it.place)[:99], jpeg(it.place)[99:])))),
    "gzip-empty": lambda it: it.body(gzip.compress(b"")),
    "gzip-bomb-last": lambda it: it.body(gzip.compress(jpeg(it.place)) + gzip.compress(bytes(8 << 20))),
    "gzip-bad": lambda it: it.body(b"\x1f\x8b" + bytes(900)),
    "gzip-bomb": lambda it: it.body(gzip.compress(bytes(8 << 20))),
    "slow-trailer": _Handler.slow_trailer,
    "turned": lambda it: it.body(jpeg(it.place, orientation=3)),
    "turned-late": lambda it: it.body(late_exif(it.place)),
    "png16": lambda it: it.body(sixteen_bits("PNG")),
    "tiff16": lambda it: it.body(sixteen_bits("TIFF")),
    "huge": lambda it: it.body(it.server.huge),
    "html": lambda it: it.body(b"<html>Not here any more</html>", (("Content-Type", "text/html"),)),
    "empty": lambda it: it.body(b""),
    "zeroed": lambda it: it.body(jpeg(it.place)[:2000].ljust(9000, b"\0")),
    "html-within": lambda it: it.body(jpeg(it.place)[:2000] + b"<html>\xff\xd8 no" + jpeg(it.place)[2000:]),
    "truncated": lambda it: it.body(jpeg(it.place)[:900], length=5000),
    "long": lambda it: it.body(b"", length=200 << 20),
    "endless": _Handler.endless,
    "stall": _Handler.wait,
    "drip": _Handler.drip,
    "drip-headers": _Handler.drip_headers,
    "reset": _Handler.reset,
    "garbage": lambda it: (it.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n"), None)[1],
    "close": lambda it: None,
    "moved": lambda it: it.redirect(f"/good/{it.place}"),
    "loop": lambda it: it.redirect(it.path),
    "to-file": lambda it: it.redirect("file:///etc/hostname"),
    "to-data": lambda it: it.redirect("data:image/png;base64,AAAA"),
    "to-user": lambda it: it.redirect(it.server.url("/good/1").replace("//", "//user:word@")),
    "to-metadata": lambda it: it.redirect("http://169.254.169.254/latest/0"),
}
