"""A server of an object store's API (S3) whose objects are the files of a folder: what deltalake needs of it."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    """Requests for ``/bucket/key``; ``root`` is the folder of the bucket."""

    root: Path
    lock = threading.Lock()
    #: parts of uploads that are not complete
    parts: ClassVar[dict[str, dict[int, bytes]]] = {}
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/").partition("/")[2]

    def query(self) -> dict[str, str]:
        return {name: one[0] for name, one in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        if "list-type" in self.query():
            self.reply(200, self.listed().encode())
            return
        path = self.root / self.key()
        if not path.is_file():
            self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        data, stamp = path.read_bytes(), path.stat().st_mtime
        about = {
            "ETag": f'"{hashlib.md5(data).hexdigest()}"',
            "Last-Modified": f"{datetime.fromtimestamp(stamp, UTC):%a, %d %b %Y %H:%M:%S GMT}",
        }
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.reply(200, data, about | ({"Content-Length": str(len(data))} if self.command == "HEAD" else {}))
            return
        first = int(wanted[1]) if wanted[1] else len(data) - int(wanted[2])
        end = min(int(wanted[2]) + 1, len(data)) if wanted[1] and wanted[2] else len(data)
        self.reply(206, data[first:end], about | {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}"})

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if "partNumber" in self.query():
            self.parts.setdefault(self.query()["uploadId"], {})[int(self.query()["partNumber"])] = data
            self.reply(200, headers={"ETag": '"0"'})
            return
        path = self.root / self.key()
        with self.lock:
            if self.headers.get("If-None-Match") == "*" and path.exists():
                self.reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.reply(200, headers={"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def do_DELETE(self) -> None:
        (self.root / self.key()).unlink(missing_ok=True)
        self.reply(204)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        if "uploads" in self.query():
            upload = f"<UploadId>{uuid.uuid4().hex}</UploadId>"
            self.reply(200, f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>".encode())
            return
        if "uploadId" in self.query():
            path, parts = self.root / self.key(), self.parts.pop(self.query()["uploadId"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(parts[number] for number in sorted(parts)))
            done = '<ETag>"0"</ETag>'
            self.reply(200, f"<CompleteMultipartUploadResult>{done}</CompleteMultipartUploadResult>".encode())
            return
        keys = re.findall(r"<Key>(.*?)</Key>", text)
        for key in keys:
            (self.root / key).unlink(missing_ok=True)
        gone = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self.reply(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def listed(self) -> str:
        asked = self.query()
        prefix, after = asked.get("prefix", ""), asked.get("start-after", "")
        found, folders = [], set()
        for path in sorted(self.root.rglob("*")):
            key = str(path.relative_to(self.root))
            if not path.is_file() or not key.startswith(prefix) or key <= after:
                continue
            head, sign, _ = key[len(prefix) :].partition("/")
            if "delimiter" in asked and sign:
                folders.add(f"{prefix}{head}/")
                continue
            status = path.stat()
            stamp = f"{datetime.fromtimestamp(status.st_mtime, UTC):%Y-%m-%dT%H:%M:%S.000Z}"
            found.append(
                f'<Contents><Key>{escape(key)}</Key><LastModified>{stamp}</LastModified><ETag>"0"</ETag>'
                f"<Size>{status.st_size}</Size></Contents>"
            )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
        return (
            f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{''.join(found)}{common}"
            "</ListBucketResult>"
        )


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Yield the address of a server whose every bucket is the folder.

    It is a process, because some calls of deltalake keep all threads of theirs waiting.
    """
    command = [sys.executable, "-m", __name__, str(folder)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    handler = type("Bucket", (Handler,), {"root": Path(sys.argv[1])})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
