"""TLS in front of a server that has none: it ends the encryption and passes the bytes on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import threading
from pathlib import Path

from .redis_box import RedisBox


def make_certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """Return the files of a new certificate, which signs itself, and of its key."""
    folder.mkdir(exist_ok=True)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run(
        ["openssl", "req", *kind, *subject, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


class TlsFront:
    """TLS listener on a loopback port. ``with TlsFront(box, certificate, key) as front: front.url``."""

    def __init__(self, box: RedisBox, certificate: Path, key: Path) -> None:
        self._box = box
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._port = 0

    @property
    def url(self) -> str:
        """URL of the server through the front."""
        return f"rediss://127.0.0.1:{self._port}/0"

    def __enter__(self) -> TlsFront:
        self._thread.start()
        self._port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return int(self._server.sockets[0].getsockname()[1])

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.wait(others or [asyncio.ensure_future(asyncio.sleep(0))])
        await asyncio.sleep(0.1)  # transports are closed by the next turns of the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection(str(self._box.socket_path))
        try:
            copies = [asyncio.ensure_future(_copy(*pair)) for pair in ((reader, requests), (answers, writer))]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the front is closed
        finally:
            for side in (requests, writer):
                side.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
