# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a node is asked: a tool within a limit of time, and files below a root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

Ask = Callable[..., tuple[str, str]]
"""``ask(program, *arguments)`` → what it prints, and why it did not; one of them is empty. FileNotFoundError where
there is no such program.
"""

LIMIT = 60.0
"""Seconds; nvidia-smi waits for ever for a GPU that does not answer."""

GRACE = 5.0
"""Seconds from SIGTERM to SIGKILL, and from there to giving up."""

HUNG = "did not answer within"
"""In the complaint about a tool that was ended."""

_PLACES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")


def ask(program: str, *arguments: str) -> tuple[str, str]:
    """Run a tool that prints; see ``Ask``.

    A tool that waits for the kernel cannot be killed (uninterruptible sleep, as nvidia-smi's on a GPU that fell off
    the bus): it is left behind instead of waited for.
    """
    found = find(program)
    if found is None:
        raise FileNotFoundError(program)
    command = [found, *arguments]
    called = " ".join([os.path.basename(program), *arguments])
    # In another locale numbers and messages may be written otherwise.
    environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C"}
    try:
        # pylint: disable-next=ansible-bad-function,consider-using-with # with would wait for what cannot be killed
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return "", f"{called} could not be started: {error.strerror}"
    try:
        output, complaint = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        _end(process)
        return "", f"{called} {HUNG} {LIMIT:g} s"
    if process.returncode == 0:
        return output, ""
    said = " ".join((output + complaint).split())[:300]
    return "", f"{called} ended with status {process.returncode}: {said}"


def find(program: str) -> str | None:
    """The path of a program, also where root's folders are not on the PATH."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    return shutil.which(program, path=path)


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        try:
            process.communicate(timeout=GRACE)
            return
        except subprocess.TimeoutExpired:
            continue
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def below(root: Path, path: str) -> Path:
    """The file that stands for a node's absolute path."""
    return root / path.lstrip("/")


def text(path: Path, limit: int = 1 << 20) -> str:
    """The beginning of a file; empty where it cannot be read."""
    return data(path, limit).decode("utf-8", "replace")


def data(path: Path, limit: int) -> bytes:
    """So many bytes of a file, at most; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def word(path: Path) -> str:
    """The first line of a file, as of ``/sys``; empty where it cannot be read."""
    return (text(path, 4096).splitlines() or [""])[0].strip()


def number(path: Path) -> int | None:
    """A file's only number; None where it has none."""
    try:
        return int(word(path), 0)
    except ValueError:
        return None


def entries(folder: Path) -> list[str]:
    """Names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def resolve(path: str, root: Path) -> str:
    """Where a node's path leads, an absolute link being one of the node. Where nothing is, the path itself."""
    done, left, links = "/", _steps(path), 0
    while left:
        step = left.pop()
        here = os.path.normpath(os.path.join(done, step))
        try:
            target = os.readlink(below(root, here))
        except OSError:
            done = here
            continue
        links += 1
        if links > 40:  # as many as the kernel follows: path_resolution(7)
            return path
        done = "/" if target.startswith("/") else done
        left.extend(_steps(target))
    return done


def _steps(path: str) -> list[str]:
    return [step for step in reversed(path.split("/")) if step]


def stanzas(path: Path) -> Iterator[dict[str, str]]:
    """The paragraphs of a control file of Debian's, without folded lines: deb822(5)."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except OSError:
        return
    with file:
        stanza: dict[str, str] = {}
        for line in file:
            name, colon, value = line.partition(": ")
            if line == "\n":
                yield stanza
                stanza = {}
            elif colon and not line.startswith((" ", "\t")):
                stanza[name] = value.strip()
        yield stanza
