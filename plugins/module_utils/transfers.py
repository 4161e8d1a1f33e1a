# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Move a model's files onto a node: resumed at the byte, hashed on the way, put in place whole; serve them to others.

A file under way lies in the folder ``weights.OWN`` of the model's, and gets its name when its length, hash and header
are right. ``config.json``, without which it is no model, comes last, and the manifest after it. The bytes come by HTTP
with ranges, not through ``huggingface_hub``: since its release 1.33 it keeps nothing of a file that it was interrupted
at (huggingface/huggingface_hub#4228), and a shard has 5 to 10 GB.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import http.client
import http.server
import io
import ipaddress
import json
import os
import re
import shutil
import socket
import socketserver
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ansible_collections.inference.sglang.plugins.module_utils import weights, wheels
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts, errors
from ansible_collections.inference.sglang.plugins.module_utils.weights import Wanted, WeightsError

HERE = "plugins/module_utils/transfers.py"

CHUNK = 1 << 20
FIRST, LEAST = 1 << 14, 1 << 12
"""Bytes read at a time: as many as come in half a second, so that a process that is killed loses no more."""

PIECE = 1 << 30
"""Bytes asked for at a time: signed addresses expire, and the hub's servers send no whole file above 50 GB."""

TIMEOUT = 30
TRIES = 6
"""Seconds that a connection may be silent, and attempts in a row that may bring no byte."""

FULL = (errno.ENOSPC, errno.EDQUOT)

LEDGER, STATE, LOCK = weights.LEDGER, "state.json", "lock"

ONCE_MORE = "Run this again: it goes on where it ended"


class BrokenError(OSError):
    """An answer that ended early or was not the one asked for; another attempt may be luckier."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A credential is for the server that it was meant for; urllib alone would hand it on."""

    def redirect_request(  # noqa: PLR0917 # the base class's
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and _server(newurl) != _server(req.full_url):
            request.remove_header("Authorization")
        return request


class Source:
    """Where files come from: HTTP servers, with ``headers`` sent to each, or folders of this node."""

    def __init__(
        self, headers: Mapping[str, str] | None = None, timeout: float = TIMEOUT, direct: bool = False
    ) -> None:
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "inference.sglang", **(headers or {})}
        self._timeout = timeout
        # Certificates as the system trusts them, or SSL_CERT_FILE; proxies as the environment names them.
        secure = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        proxies = [urllib.request.ProxyHandler({})] if direct else []
        self._opener = urllib.request.build_opener(_Redirects, secure, *proxies)

    @contextlib.contextmanager
    def open(self, file: Wanted, start: int, most: int = PIECE) -> Iterator[tuple[BinaryIO, int, int]]:
        """A stream of ``most`` bytes at most, if the server knows ranges; the offset that it really begins at; and the
        size of the whole file (-1 where that is not told).

        Raises WeightsError where asking again is of no use, else OSError or HTTPException.
        """
        if file.origin.startswith("/"):
            with open(file.origin, "rb") as local:
                local.seek(start)
                yield local, start, os.fstat(local.fileno()).st_size
            return
        end = start + most - 1
        request = urllib.request.Request(  # noqa: S310 # judge_settings lets http and https through
            file.origin, headers={**self._headers, "Range": f"bytes={start}-{end}"}
        )
        try:
            answer = self._opener.open(request, timeout=self._timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:
                # Nothing from there on: of an empty file not even from its begin.
                yield io.BytesIO(), start, -1 if start else 0
                return
            raise _refused(file, error) from error
        with answer:
            if answer.status == 206:
                part = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
                if part is None or int(part[1]) != start:
                    raise BrokenError(f"{shown(file.origin)} answers with another part than was asked for")
                yield answer, start, -1 if part[2] == "*" else int(part[2])
            else:
                yield answer, 0, int(answer.headers.get("Content-Length", -1))

    def size(self, file: Wanted) -> int:
        """Bytes of a file, by asking for its first. Raises WeightsError."""
        try:
            with self.open(file, 0, 1) as (_stream, _start, total):
                if total >= 0:
                    return total
                why = "does not tell its size"
        except (OSError, http.client.HTTPException) as error:
            why = f"cannot be reached: {_said(error)}"
        raise WeightsError(unreachable(file, why))

    def text(self, url: str, most: int = 16 << 20) -> str:
        """A small file. Raises WeightsError."""
        file = Wanted(url, origin=url)
        try:
            with self.open(file, 0) as (stream, _start, _total):
                return stream.read(most).decode()
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            raise WeightsError(unreachable(file, f"cannot be read: {_said(error)}")) from error


class Folder:
    """A model's folder that is being filled. One process does it at a time: ``claim``."""

    def __init__(self, path: Path, what: Mapping[str, Any]) -> None:
        self.path = path
        self.own = path / weights.OWN
        self.what = what

    def claim(self) -> int | None:
        """Descriptor of a lock that this process, and whatever it forks, now holds; None where another does."""
        self.own.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.own / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # Whoever only looks holds it for a moment, too.
        for _attempt in range(5):
            if _locked(descriptor, fcntl.LOCK_EX):
                return descriptor
            time.sleep(0.1)
        os.close(descriptor)
        return None

    def busy(self) -> bool:
        """Whether a process holds it."""
        try:
            with (self.own / LOCK).open() as lock:
                return not _locked(lock.fileno(), fcntl.LOCK_SH)
        except FileNotFoundError:
            return False

    def entries(self) -> dict[str, dict[str, Any]]:
        """What manifest and ledger know of the files, whether or not they are still so."""
        known = weights.manifest(self.path) or {}
        try:
            ledger = json.loads((self.own / LEDGER).read_bytes())
        except (OSError, ValueError):
            ledger = {}
        return {**known.get("files", {}), **(ledger.get("files", {}) if ledger.get("what") == self.what else {})}

    def begin(self) -> dict[str, dict[str, Any]]:
        """Take the manifest away, so that nothing starts from a folder that is being changed; gives what it knew."""
        entries = self.entries()
        self.keep(entries)
        (self.own / wheels.MANIFEST).unlink(missing_ok=True)
        return entries

    def keep(self, entries: Mapping[str, Any]) -> None:
        """Write down what is right so far: an interrupted transfer does not hash it again."""
        content = json.dumps({"what": self.what, "files": entries}, sort_keys=True)
        wheels.write_atomically(self.own / LEDGER, content)

    def tell(self, state: Mapping[str, Any]) -> None:
        """Write down how far it is, for whoever looks."""
        wheels.write_atomically(self.own / STATE, json.dumps(state))

    def told(self) -> dict[str, Any]:
        """How far it was when last told; empty where nothing was."""
        try:
            state = json.loads((self.own / STATE).read_bytes())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def part(self, file: Wanted) -> Path:
        """Where a file is while it is under way; another version of it is another place."""
        of = json.dumps([file.name, file.sha256 or file.blob, self.what], sort_keys=True)
        return self.own / f"{hashlib.sha256(of.encode()).hexdigest()[:16]}.incomplete"

    def missing(self, wanted: Sequence[Wanted]) -> int:
        """Bytes that are still to be written."""
        good = self.good(wanted, self.entries())
        return sum(
            max(0, file.size - _length(self.part(file)))
            for file in wanted
            if file.name not in good and not (self.path / file.name).exists()
        )

    def good(self, wanted: Sequence[Wanted], entries: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Those files that were found right and have not been touched since."""
        still = weights.untouched(self.path, entries)
        return {
            file.name for file in wanted if file.name in still and file.sha256 in ("", entries[file.name]["sha256"])
        }

    def finish(self, entries: Mapping[str, Any]) -> None:
        """Judge the folder as a whole, and declare it complete. Raises WeightsError."""
        if wrong := errors(weights.judge(weights.take(self.path))):
            raise WeightsError(*wrong)
        wheels.write_manifest(str(self.own), {"what": self.what, "files": entries})
        (self.own / LEDGER).unlink(missing_ok=True)
        (self.own / STATE).unlink(missing_ok=True)


class Transfer:
    """All files of a model into a folder, several at a time."""

    def __init__(
        self, folder: Folder, wanted: Sequence[Wanted], source: Source, connections: int = 8, limit: float = 43200
    ) -> None:
        self.folder = folder
        self.wanted = list(wanted)
        self.source = source
        self.connections = connections
        self.limit = limit
        self.wait: Callable[[float], object] = time.sleep
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._done = self._begun = self._files = 0
        self._entries: dict[str, dict[str, Any]] = {}
        self._ours: set[str] = set()
        self._started = time.monotonic()

    def progress(self) -> weights.Progress:
        """How far it is."""
        with self._guard:
            total = sum(max(file.size, 0) for file in self.wanted)
            seconds = time.monotonic() - self._started
            return weights.Progress(self._done, total, self._files, len(self.wanted), seconds, self._begun)

    def run(self, tell: Callable[[weights.Progress], object] = lambda _progress: None) -> None:
        """Fetch what is missing. ``tell`` is called every second. Raises WeightsError, OSError."""
        known = self.folder.begin()
        self._ours = {name for name, entry in known.items() if entry.get("ours")}
        good = self.folder.good(self.wanted, known)
        self._entries = {name: known[name] for name in good}
        self._forget_others()
        self._files = len(good)
        self._done = sum(file.size for file in self.wanted if file.name in good)
        rest = [file for file in self.wanted if file.name not in good]
        self._done += sum(_length(self.folder.part(file)) for file in rest)
        self._begun = self._done
        for group in (
            [file for file in rest if file.name != weights.CONFIG],
            [file for file in rest if file.name == weights.CONFIG],
        ):
            self._all(group, tell)
        self.folder.finish(self._entries)

    def _all(self, files: Sequence[Wanted], tell: Callable[[weights.Progress], object]) -> None:
        with futures.ThreadPoolExecutor(self.connections) as pool:
            pending = {pool.submit(self._one, file) for file in files}
            wrong: list[Finding] = []
            failure: BaseException | None = None
            while pending:
                done, pending = futures.wait(pending, timeout=1, return_when=futures.FIRST_EXCEPTION)
                for future in done:
                    error = None if future.cancelled() else future.exception()
                    if isinstance(error, WeightsError):
                        wrong += error.findings
                    elif error is not None:
                        failure = failure or error
                if time.monotonic() - self._started > self.limit and not self._stop.is_set():
                    seen = f"{self.limit:.0f} s are over (model_weights_timeout); {self.progress()}"
                    wrong.append(Finding("weights.timeout", "error", seen, ONCE_MORE, HERE))
                if wrong or failure:
                    # The others end at their next chunk, and what they have is kept.
                    self._stop.set()
                    for future in pending:
                        future.cancel()
                tell(self.progress())
        if wrong:
            raise WeightsError(*dict.fromkeys(wrong))
        if failure:
            raise failure

    def _one(self, file: Wanted) -> None:
        target = self.folder.path / file.name
        ours = True
        if target.exists():
            digest = self._read(target, file)
            why = _differs(file, target, digest)
            ours = file.name in self._ours
            if not why:
                self._note(file, target, digest, ours)
                return
            if not ours:
                raise WeightsError(weights.conflict(target, why))
            self._moved(-target.stat().st_size if digest else 0)
        part = self.folder.part(file)
        for last in (False, True):
            digest = self._fill(file, part)
            if self._stop.is_set():
                return
            why = _differs(file, part, digest)
            if not why:
                break
            with self._guard:
                self._done -= _length(part)
            part.unlink()
            if last:
                seen = f"{file.name} from {shown(file.origin)} is not what was announced: {why}, twice"
                raise WeightsError(
                    Finding("weights.hash", "error", seen, "Use another source: this one is damaged", HERE)
                )
        if file.name.endswith(".safetensors") and (why := weights.measure(part)):
            seen = f"{file.name} from {shown(file.origin)} {why}"
            raise WeightsError(
                Finding("weights.source", "error", seen, "Use another source: this one is damaged", HERE)
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        part.chmod(0o644)
        os.replace(part, target)
        self._note(file, target, digest, True)

    def _note(self, file: Wanted, target: Path, digest: str, ours: bool) -> None:
        with self._guard:
            self._entries[file.name] = weights.record(target, digest, ours)
            self._files += 1
            self.folder.keep(self._entries)

    def _read(self, path: Path, file: Wanted) -> str:
        """SHA-256 of a file that is there; one of another length is not worth reading."""
        if file.size >= 0 and path.stat().st_size != file.size:
            return ""
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                self._moved(len(chunk))
                if self._stop.is_set():
                    raise WeightsError()
        return digest.hexdigest()

    def _fill(self, file: Wanted, part: Path) -> str:
        """Fetch what a part lacks, and give its SHA-256. Raises WeightsError."""
        digest = hashlib.sha256()
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "r+b") as stream:
            position = 0
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                position += len(chunk)
            size, vain = file.size, 0
            if size == 0 or position > size >= 0:
                position = self._again(stream, position)
                digest = hashlib.sha256()
            while (size < 0 or position < size) and not self._stop.is_set():
                before, why = position, "sent nothing"
                try:
                    with self.source.open(file, position) as (source, start, total):
                        if size >= 0 and total not in (-1, size):
                            seen = f"{shown(file.origin)} has {total} bytes, and {file.name} was to have {size}"
                            raise WeightsError(
                                Finding("weights.size", "error", seen, "Use another source, or correct the list", HERE)
                            )
                        size = total if size < 0 else size
                        if start != position:
                            position = before = self._again(stream, position)
                            digest = hashlib.sha256()
                        asked, piece = time.monotonic(), FIRST
                        while not self._stop.is_set() and (chunk := source.read(_most(size, position, piece))):
                            stream.write(chunk)
                            stream.flush()
                            digest.update(chunk)
                            position += len(chunk)
                            self._moved(len(chunk))
                            now = time.monotonic()
                            piece = int(len(chunk) / max(now - asked, 1e-9) / 2)
                            asked = now
                except WeightsError:
                    raise
                except (OSError, http.client.HTTPException) as error:
                    if isinstance(error, OSError) and error.errno in FULL:
                        raise WeightsError(_full(part.parent)) from error
                    why = _said(error)
                vain = 0 if position > before else vain + 1
                if vain >= TRIES:
                    raise WeightsError(unreachable(file, f"{why}, {TRIES} times in a row"))
                if vain:
                    self.wait(min(2.0**vain, 30))
            try:
                stream.flush()
                os.fsync(descriptor)
            except OSError as error:
                raise WeightsError(_full(part.parent)) from error
        return digest.hexdigest()

    def _again(self, stream: BinaryIO, position: int) -> int:
        stream.seek(0)
        stream.truncate()
        self._moved(-position)
        return 0

    def _moved(self, count: int) -> None:
        with self._guard:
            self._done += count

    def _forget_others(self) -> None:
        """Remove the parts of what is no longer wanted: this collection wrote them."""
        kept = {self.folder.part(file) for file in self.wanted}
        for path in self.folder.own.glob("*.incomplete"):
            if path not in kept:
                path.unlink()


def sizes(wanted: Sequence[Wanted], source: Source, connections: int) -> list[Wanted]:
    """The same files, each with its size. Raises WeightsError."""
    with futures.ThreadPoolExecutor(connections) as pool:
        told = pool.map(lambda file: file.size if file.size >= 0 else source.size(file), wanted)
        return [replace(file, size=size) for file, size in zip(wanted, told, strict=True)]


def free_bytes(path: Path) -> int:
    """What may still be written on the file system of a path that need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def detach(work: Callable[[], object], name: str) -> None:
    """Do the work in a process that outlives this one, and return at once. It holds no terminal and no pipe of ours.

    ``name``  what lists of processes call it (``ps -e``, pgrep); proc_pid_comm(5) takes 15 characters
    """
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(nothing, standard)
            with contextlib.suppress(OSError):
                Path("/proc/self/comm").write_text(name, encoding="utf-8")
            work()
    finally:
        os._exit(0)


def fetch(transfer: Transfer) -> None:
    """Run a transfer, and leave word of how far it is and of what it failed at, if it did."""

    folder = transfer.folder

    def tell(progress: weights.Progress) -> None:
        # A full disk ends the transfer itself, not the word of how far it is.
        with contextlib.suppress(OSError):
            folder.tell({"running": True, "pid": os.getpid(), "text": str(progress), "findings": []})

    try:
        transfer.run(tell)
    except WeightsError as error:
        found = list(error.findings)
    except OSError as error:
        remedy = "Mend that, and run this again"
        failed = Finding("weights.failed", "error", f"{folder.path}: {_said(error)}", remedy, HERE)
        found = [_full(folder.own) if error.errno in FULL else failed]
    else:
        return
    state = {"running": False, "text": str(transfer.progress()), "findings": as_dicts(found)}
    try:
        folder.tell(state)
    except OSError:
        # The room for it: what a part loses at its end is fetched again.
        for part in folder.own.glob("*.incomplete"):
            os.truncate(part, max(0, _length(part) - CHUNK))
        with contextlib.suppress(OSError):
            folder.tell(state)


# --- from node to node


class Server(http.server.ThreadingHTTPServer):
    """Serves the files of one manifest to whoever has the token, until it is told to end, is idle, or its time is over.

    There are no paths in a request: ``/3`` is the fourth of the sorted names. What is sent is not encrypted; whoever
    receives it has the hashes from elsewhere.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], files: Sequence[Path], token: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.files = list(files)
        self.token = token
        self.last = time.monotonic()

    def server_bind(self) -> None:
        # Not the base class's: it asks the name service for the address's name.
        socketserver.TCPServer.server_bind(self)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.socket.getsockname()[1])

    def live(self, limit: float, idle: float) -> None:
        """Serve for ``limit`` seconds at most, and no longer than ``idle`` without sending a byte."""
        over = time.monotonic() + limit
        threading.Thread(target=self._watch, args=(over, idle), daemon=True).start()
        with self:
            self.serve_forever(poll_interval=0.2)

    def _watch(self, over: float, idle: float) -> None:
        while time.monotonic() < min(over, self.last + idle):
            time.sleep(0.2)
        self.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT
    server: Server

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep no log."""

    def do_GET(self) -> None:
        """Send a part of a file, or all of it."""
        if not self._known():
            return
        try:
            file = self.server.files[int(self.path.removeprefix("/"))]
        except (ValueError, IndexError):
            self._answer(404)
            return
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "bytes=0-"))
            start = int(asked[1]) if asked else 0
            end = min(int(asked[2]) if asked and asked[2] else size - 1, size - 1)
            if start > end:
                self._answer(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
            self.send_header("Content-Length", str(end + 1 - start))
            self.end_headers()
            self.wfile.flush()
            while start <= end:
                sent = self.connection.sendfile(stream, start, min(64 * CHUNK, end + 1 - start))
                if not sent:
                    break
                start += sent
                self.server.last = time.monotonic()

    def do_DELETE(self) -> None:
        """End."""
        if self._known():
            self._answer(204)
            threading.Thread(target=self.server.shutdown, daemon=True).start()

    def _known(self) -> bool:
        given = self.headers.get("Authorization", "")
        if hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            self.server.last = time.monotonic()
            return True
        self._answer(401)
        return False

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def end_server(url: str, token: str) -> bool:
    """Tell a server to end; gives whether it was still there."""
    request = urllib.request.Request(  # noqa: S310 # an address that this collection made
        f"{url}/end", method="DELETE", headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10):
            return True
    except OSError:
        return False


def listening_address(name: str) -> str:
    """The address of this node that a name of it stands for. Raises WeightsError."""
    source = "https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution"
    remedy = "Set model_weights_seed_address of this node to its address in the cluster's network"
    try:
        address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise WeightsError(
            Finding("weights.seed_address", "error", f"{name} has no address here: {_said(error)}", remedy, source)
        ) from error
    if name != address and ipaddress.ip_address(address).is_loopback:
        seen = f"{name} stands for {address} on its own node, which no other node reaches"
        raise WeightsError(Finding("weights.seed_address", "error", seen, remedy, source))
    try:
        # Clouds reach a node by an address that is translated on the way.
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError as error:
        seen = f"{f'{name}, ' if name != address else ''}{address}, cannot be listened on here: {_said(error)}"
        raise WeightsError(Finding("weights.seed_address", "error", seen, remedy, source)) from error
    return address


def shown(origin: str) -> str:
    """An address without what may be secret in it: user and query."""
    parts = urllib.parse.urlsplit(origin)
    return origin if not parts.netloc else f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def unreachable(file: Wanted, why: str) -> Finding:
    """A source that does not answer, or not for long enough."""
    seen = f"{shown(file.origin)}: {why}"
    remedy = "Check the network, the proxy (model_weights_environment) and firewalls on the way. " + ONCE_MORE
    return Finding("weights.unreachable", "error", seen, remedy, HERE)


def _refused(file: Wanted, error: urllib.error.HTTPError) -> Exception:
    """What becomes of an answer that is none."""
    seen = f"{shown(file.origin)} answers {error.code} {error.reason}"
    if error.code in (408, 425, 429) or error.code >= 500:
        return BrokenError(seen)
    if error.code in (401, 403):
        remedy = "Set model_weights_token to one that may read it, and accept the model's terms where it has some"
        return WeightsError(Finding("weights.refused", "error", seen, remedy, HERE))
    if error.code in (404, 410):
        return WeightsError(Finding("weights.not_there", "error", seen, "Correct address, revision or list", HERE))
    return WeightsError(Finding("weights.refused", "error", seen, "Check proxy and address", HERE))


def _full(own: Path) -> Finding:
    seen = f"the file system of {own.parent} is full; {free_bytes(own) / 1e9:.1f} GB are free"
    return Finding("weights.disk", "error", seen, "Free space: what was fetched is kept. " + ONCE_MORE, "write(2)")


def _differs(file: Wanted, path: Path, digest: str) -> str:
    """Why a file is not what is wanted; empty where it is, as far as the source tells."""
    size = path.stat().st_size
    if file.size >= 0 and size != file.size:
        return f"{size} bytes, not {file.size}"
    if file.sha256 and digest != file.sha256:
        return f"SHA-256 {digest[:16]}..., not {file.sha256[:16]}..."
    if file.blob:
        content = path.read_bytes()
        name = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if name != file.blob:
            return f"git's hash {name}, not {file.blob}"
    return ""


def _most(size: int, position: int, piece: int) -> int:
    """Bytes to read next, about a piece; of a file whose size is known, none beyond it."""
    most = min(max(piece, LEAST), CHUNK)
    return most if size < 0 else min(most, size - position)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _said(error: BaseException) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return text or type(reason).__name__


def _server(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
