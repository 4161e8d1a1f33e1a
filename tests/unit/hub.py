# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for a model hub and for a plain web server, on loopback. It is neither, and says so in its headers.

Paths, headers and bodies have the shape that ``huggingface_hub`` 1.33.0 asks for and reads: ``hf_api.py``
(``model_info``, ``list_repo_tree``), ``file_download.py`` (``get_hf_file_metadata``), ``utils/_http.py``
(``X-Error-Code``).
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections import Counter
from collections.abc import Mapping
from typing import Any

REPOSITORY = "stand-in/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_not-a-real-token"  # noqa: S105 # of the stand-in


class Hub(http.server.ThreadingHTTPServer):
    """Serves ``files`` as repository and as plain folder ``/plain/``; what it is asked for is counted.

    ``gated``   the token is needed
    ``cut``     file -> bytes after which the connection breaks, at each answer
    ``broken``  file -> how many of the next requests for it are answered by 503
    ``fake``    file -> what is sent in its place
    ``ranges``  whether parts are sent
    ``hold``    when set, no byte beyond the first half of a file is sent until it is cleared
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.gated = False
        self.cut: dict[str, int] = {}
        self.broken: Counter[str] = Counter()
        self.fake: dict[str, bytes] = {}
        self.ranges = True
        self.hold = threading.Event()
        self.asked: list[tuple[str, str]] = []
        self.sent: Counter[str] = Counter()
        self.leaked: list[str] = []
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def elsewhere(self) -> str:
        """The same server by another name, as a hub's storage is another server."""
        return f"http://localhost:{self.server_address[1]}"

    def close(self) -> None:
        self.hold.clear()
        self.shutdown()
        self.server_close()


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "original"}]
    for name, content in files.items():
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": blob(content)}
        if is_large(name):
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            entry["xetHash"] = digest
        entries.append(entry)
    return entries


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "stand-in-for-a-hub"
    server: Hub

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.asked.append((self.command, path))
        authorized = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if path.startswith("/storage/"):
            if self.headers.get("Authorization"):
                self.server.leaked.append(path)
            self.content(path.removeprefix("/storage/"))
        elif self.server.gated and not authorized:
            self.error(401, "GatedRepo" if self.headers.get("Authorization") else "RepoNotFound")
        elif path.startswith("/plain/"):
            self.content(path.removeprefix("/plain/"))
        elif found := re.fullmatch(rf"/api/models/{REPOSITORY}/revision/(.+)", path):
            if found[1] in ("main", COMMIT):
                siblings = [{"rfilename": name} for name in self.server.files]
                self.json({"id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": siblings, "tags": []})
            else:
                self.error(404, "RevisionNotFound")
        elif path == f"/api/models/{REPOSITORY}/tree/{COMMIT}":
            self.json(tree(self.server.files))
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            self.resolve(path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/"))
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/"):
            self.error(404, "RevisionNotFound")
        else:
            self.error(404, "RepoNotFound")

    def resolve(self, name: str) -> None:
        content = self.server.files.get(name)
        if content is None:
            self.error(404, "EntryNotFound")
        elif is_large(name):
            self.send_response(302)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Location", f"{self.server.elsewhere}/storage/{name}?Signature=secret")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.content(name)

    def content(self, name: str) -> None:
        content = self.server.fake.get(name, self.server.files.get(name, b""))
        if name not in self.server.files:
            self.error(404, "EntryNotFound")
            return
        if self.server.broken[name] > 0:
            self.server.broken[name] -= 1
            self.error(503, "")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, end = 0, len(content)
        if asked and self.server.ranges:
            start = int(asked[1])
            end = min(int(asked[2]) + 1 if asked[2] else end, end)
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{blob(content)}"')
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        body = content[start:end]
        if self.server.hold.is_set():
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            self.server.sent[name] += half
            while self.server.hold.is_set():
                threading.Event().wait(0.02)
            body = body[half:]
        if name in self.server.cut:
            body = body[: self.server.cut[name]]
            self.close_connection = True
        self.wfile.write(body)
        self.server.sent[name] += len(body)

    def json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()
