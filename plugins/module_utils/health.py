# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A running instance: what systemd, its journal and its HTTP endpoint say."""

from __future__ import annotations

import datetime
import http.client
import json
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils.plan import DIGEST_VARIABLE

# Never through a proxy: the endpoint is on loopback.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


UNIT_FOLDER = Path("/etc/systemd/system")


class SystemdError(Exception):
    """systemctl refused; the text says what."""


def unit_name(instance: str) -> str:
    """Name of the instance's unit."""
    return f"sglang-{instance}.service"


def unit_file(instance: str) -> Path:
    """Where the role writes the instance's unit."""
    return UNIT_FOLDER / unit_name(instance)


@dataclass(frozen=True)
class UnitState:
    """What systemd knows of a unit; all empty for one that it does not know.

    ``active``    ActiveState: active, activating, inactive, failed, …
    ``sub``       SubState: running, start-post, auto-restart, …
    ``result``    Result of the last run: success, exit-code, signal, timeout, …
    ``main_pid``  0 while no main process runs
    ``restarts``  starts that systemd made by itself since the last one on request
    ``started``   when the main process was started, seconds since the epoch; 0 while none runs
    ``queued``    whether a start or stop waits for its turn, as before the network is up
    ``outdated``  whether systemd has not read the unit since it was last written
    """

    active: str
    sub: str
    result: str
    main_pid: int
    restarts: int
    started: float
    queued: bool = False
    outdated: bool = False

    @property
    def over(self) -> bool:
        """Neither running nor on the way there."""
        return self.active in ("failed", "inactive") and not self.queued

    @property
    def stopped(self) -> bool:
        """Not running because nobody wants it to, or nobody has ever started it."""
        return self.active == "inactive" and not self.queued

    @property
    def died(self) -> bool:
        """The main process ended by itself, and systemd waits: to start it again, or for what it starts with."""
        waits = self.sub == "auto-restart" or (self.sub == "start-post" and not self.main_pid)
        return waits and not self.queued


def unit_state(instance: str) -> UnitState:
    """Ask systemd. Works for a unit that does not exist: systemd calls it inactive."""
    properties = ["ActiveState", "SubState", "Result", "MainPID", "NRestarts", "ExecMainStartTimestamp", "Job"]
    properties.append("NeedDaemonReload")
    wanted = ["--timestamp=us+utc", f"--property={','.join(properties)}"]
    output = _output(["systemctl", "show", unit_name(instance), *wanted])
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    pid = int(values.get("MainPID") or 0)
    return UnitState(
        active=values.get("ActiveState", ""),
        sub=values.get("SubState", ""),
        result=values.get("Result", ""),
        main_pid=pid,
        restarts=int(values.get("NRestarts") or 0),
        started=_seconds(values.get("ExecMainStartTimestamp", "")) if pid else 0,
        queued=values.get("Job", "") not in ("", "0"),
        outdated=values.get("NeedDaemonReload") == "yes",
    )


def reload() -> None:
    """Have systemd read all units again. Raises SystemdError."""
    _systemctl("daemon-reload")


def restart(instance: str) -> None:
    """Have systemd read the unit again and start the instance from it, without waiting. Raises SystemdError."""
    reload()
    # Starts on request count against the unit's StartLimitBurst too. A unit that was never loaded cannot be reset.
    _output(["systemctl", "reset-failed", unit_name(instance)])
    _systemctl("restart", "--no-block", unit_name(instance))


def stop(instance: str) -> None:
    """Have systemd read the unit again and stop the instance, without waiting. Raises SystemdError."""
    reload()
    _systemctl("stop", "--no-block", unit_name(instance))
    _output(["systemctl", "reset-failed", unit_name(instance)])


def journal(instance: str, lines: int) -> list[str]:
    """The last lines of the instance's journal, oldest first."""
    return _output(["journalctl", "--unit", unit_name(instance), "--lines", str(lines), "--output=cat"]).splitlines()


def telling(lines: list[str], most: int = 60) -> list[str]:
    """Of a journal, what tells why an engine ended: the last exception that a scheduler reports, and the end.

    What comes after the exception, as processes are ended, may be longer than it. At most ``most`` lines and one.
    """
    starts = [number for number, line in enumerate(lines) if "hit an exception" in line]
    if not starts or len(lines) - starts[-1] <= most:
        return lines[-most:]
    return [*lines[starts[-1] : starts[-1] + most - 10], "…", *lines[-10:]]


def running_digest(pid: int, root: Path = Path("/")) -> str:
    """Digest of the plan that a process was started from; empty when it carries none or has ended."""
    try:
        variables = (root / f"proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = f"{DIGEST_VARIABLE}=".encode()
    return next((item[len(prefix) :].decode() for item in variables if item.startswith(prefix)), "")


def runs_from_its_unit(unit: UnitState, digest: str, unit_file: Path, secrets: str = "") -> bool:
    """Whether the running process was started from the plan ``digest``, after its unit and its secrets were written.

    ``secrets``  path of the file that the plan takes its API key from; empty where it has none. Its time tells that the
                 key was changed, so that nothing that everybody may read has to hold anything of the key.
    """
    if unit.over or unit.outdated or not unit.main_pid or running_digest(unit.main_pid) != digest:
        return False
    files = [unit_file, *([Path(secrets)] if secrets else [])]
    return all(file.exists() and file.stat().st_mtime <= unit.started for file in files)


def healthy(url: str, timeout: float = 5) -> bool:
    """Whether ``/health`` answers 200. It is 503 while the model loads and once the engine was told to stop."""
    try:
        with _DIRECT.open(f"{url}/health", timeout=timeout):
            return True
    except (OSError, ValueError, http.client.HTTPException):
        return False


def complete(
    url: str, model: str, prompt: str, tokens: int = 16, timeout: float = 120, *, key: str = ""
) -> dict[str, Any]:
    """One real greedy completion of exactly ``tokens`` tokens, as the OpenAI endpoint gives it.

    ``key``  the API key; an engine without one ignores it

    Raises OSError when the engine cannot be reached or refuses, ValueError when its answer holds no completion.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(  # noqa: S310 # the plan's own http URL
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    if key:
        request.add_unredirected_header("Authorization", f"Bearer {key}")
    try:
        with _DIRECT.open(request, timeout=timeout) as response:
            answer: Any = json.load(response)
    except http.client.HTTPException as problem:
        raise OSError(f"{url} does not speak HTTP: {problem!r}") from problem
    match answer:
        case {"choices": [{"text": str()}, *_], "usage": {"completion_tokens": count}} if count == tokens:
            completion: dict[str, Any] = answer
            return completion
    raise ValueError(f"{url} did not complete {tokens} tokens: {str(answer)[:500]}")


def _seconds(timestamp: str) -> float:
    """Seconds since the epoch of what ``--timestamp=us+utc`` prints: ``Sun 2026-11-29 20:03:13.220012 UTC``."""
    # As written at the start: the time since boot would move against a file's time whenever the clock is set.
    if not timestamp:
        return 0
    moment = datetime.datetime.strptime(timestamp.partition(" ")[2], "%Y-%m-%d %H:%M:%S.%f %Z")
    return moment.replace(tzinfo=datetime.UTC).timestamp()


def _systemctl(*arguments: str) -> None:
    # pylint: disable-next=ansible-bad-function # the core knows no AnsibleModule
    done = subprocess.run(["systemctl", *arguments], text=True, capture_output=True, check=False, errors="replace")
    if done.returncode != 0:
        raise SystemdError(f"systemctl {' '.join(arguments)} failed with {done.returncode}: {done.stderr.strip()}")


def _output(argv: list[str]) -> str:
    # pylint: disable-next=ansible-bad-function # the core knows no AnsibleModule
    return subprocess.run(argv, text=True, capture_output=True, check=False, errors="replace").stdout
