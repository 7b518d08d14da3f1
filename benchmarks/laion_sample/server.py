"""The web server of the sample: misbehaves as each address's kind says, and keeps a log of what it did.

    python -m benchmarks.laion_sample.server --emoji data/emoji/train --rows 2000 --log server.jsonl

Listens on a free port of 127.0.0.1, prints its address, and ends when its standard input does: with whoever started it,
however that ends. The log has a line an answer: [number of the row, what was done], in the words of causes.py.
"""

import argparse
import contextlib
import functools
import io
import json
import os
import re
import socket
import socketserver
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TextIO

from PIL import Image

from benchmarks.laion_sample.causes import action
from benchmarks.laion_sample.pictures import Pictures

_ADDRESS = re.compile(r"/([\w-]+)/(\d+)\.jpg")
_MB = 1 << 20
PICTURES = ("picture", "turned", "16-bit", "8x8", "4-to-1")
OPT_OUTS: tuple[tuple[str, str], ...] = (
    ("X-Robots-Tag", "noai"),
    ("X-Robots-Tag", "max-image-preview:large, NoImageAI"),
    ("x-robots-tag", "img2dataset: noindex"),
    ("TDM-Reservation", "1"),
)


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves while `serve_forever` runs; `did` writes the log."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, pictures: Pictures, log: TextIO) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pictures = pictures
        self.over = threading.Event()
        self._log, self._lock = log, threading.Lock()
        self._asked: Counter[int] = Counter()

    def did(self, kind: str, place: int) -> str:
        """Decide what is done with a request, and write it down."""
        with self._lock:
            self._asked[place] += 1
            chosen = action(kind, self._asked[place])
            self._log.write(json.dumps([place, chosen]) + "\n")
            self._log.flush()
            return chosen

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        address = _ADDRESS.fullmatch(self.path)
        if address is None:
            return self.send_error(400)
        self.place = int(address[2])
        chosen = self.server.did(address[1], self.place)
        if chosen.isdigit():
            return self.send_error(int(chosen))
        return ACTIONS[chosen](self)

    def body(self, data: bytes, *headers: tuple[str, str], length: int | None = None) -> None:
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)

    def picture(self, kind: str, *headers: tuple[str, str]) -> None:
        data, type_ = self.server.pictures.encoded(self.place, kind)
        self.body(data, ("Content-Type", type_), *headers)

    def half(self, of: bool) -> None:
        """Half of a picture; `of`: the header has the length of the whole."""
        data, _ = self.server.pictures.encoded(self.place, "picture")
        self.body(data[: len(data) // 2], length=len(data) if of else None)

    def redirect(self, to: str) -> None:
        self.send_response(302)
        self.send_header("Location", to)
        self.end_headers()

    def wait(self, seconds: float) -> None:
        self.server.over.wait(seconds)

    def drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.over.is_set():  # until the client leaves, which raises here
            self.wfile.write(b"x")
            self.wait(0.1)

    def reset(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc")
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())  # with this linger, a reset

    def chunked(self) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(200):
            self.wfile.write(b"100000\r\n" + bytes(_MB) + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


@functools.cache
def vast() -> bytes:
    """A picture of 12,000 x 12,000 pixels."""
    buffer = io.BytesIO()
    Image.new("L", (12_000, 12_000), 128).save(buffer, "JPEG")
    return buffer.getvalue()


ACTIONS: dict[str, Callable[[_Handler], None]] = {
    **{
        kind: functools.partial(_Handler.picture, kind=kind)
        for kind in ("picture", "turned", "16-bit", "8x8", "4-to-1")
    },
    "opted-out": lambda it: it.picture("picture", OPT_OUTS[it.place % len(OPT_OUTS)]),
    "12000x12000": lambda it: it.body(vast()),
    "200mb": lambda it: it.body(b"", length=200 * _MB),
    "200mb-unsaid": _Handler.chunked,
    "html": lambda it: it.body(b"<html>This picture has moved</html>", ("Content-Type", "text/html")),
    "empty": lambda it: it.body(b""),
    "cut-short": lambda it: it.half(of=True),
    "half-file": lambda it: it.half(of=False),
    "reset": _Handler.reset,
    "closed": lambda it: None,
    "not-http": lambda it: (it.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n"), None)[1],
    "stall": lambda it: it.wait(3600),
    "drip": _Handler.drip,
    "redirect": lambda it: it.redirect(f"/picture/{it.place}.jpg"),
    "redirect-loop": lambda it: it.redirect(it.path),
    "redirect-to-file": lambda it: it.redirect("file:///etc/hostname"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.laion_sample.server")
    parser.add_argument("--emoji", type=Path, required=True, metavar="DIR", help="shards of the emoji set")
    parser.add_argument("--rows", type=int, required=True, help="pictures to have")
    parser.add_argument("--log", type=Path, required=True, metavar="FILE", help="what was done, a line an answer")
    args = parser.parse_args()
    vast()
    with open(args.log, "w", encoding="utf-8") as log, Server(Pictures(args.emoji, args.rows), log) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()
        server.over.set()
        server.shutdown()


if __name__ == "__main__":
    main()
