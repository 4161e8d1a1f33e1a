# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Audit: any unit that runs SGLang, whoever wrote it, to its flags, environment and settings, and what is wrong there.

Reads files and changes nothing. How systemd reads a unit is told by ``units``, what a flag says by ``flags``, what an
engine makes of all of them by ``launch_rules``; the rules here are about the service around it.
"""

from __future__ import annotations

import difflib
import glob
import ipaddress
import json
import os
import re
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import credentials, flags, launch_rules, units
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, Severity
from ansible_collections.inference.sglang.plugins.module_utils.flags import FlagTable
from ansible_collections.inference.sglang.plugins.module_utils.launch_rules import Launch
from ansible_collections.inference.sglang.plugins.module_utils.units import SEARCH_PATH, Unit

SERVICE, EXEC, KILL = "systemd.service(5)", "systemd.exec(5)", "systemd.kill(5)"
UNIT = "systemd.unit(5)"
HERE = "docs/architecture.md"

FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system")
"""Where units and their drop-ins are, the first that has a file of a name wins: systemd.unit(5)."""

CACHES = {
    "CUDA_CACHE_PATH": ".nv/ComputeCache",
    "FLASHINFER_WORKSPACE_BASE": ".cache/flashinfer",
    "HF_HOME": ".cache/huggingface",
    "SGLANG_CACHE_DIR": ".cache/sglang",
    "SGLANG_DG_CACHE_DIR": ".cache/deep_gemm",
    "TRITON_CACHE_DIR": ".triton",
    "TVM_FFI_CACHE_DIR": ".cache/tvm-ffi",
    "XDG_CACHE_HOME": ".cache",
}
"""Where things are cached that are compiled or fetched at run time, and where in the home that is by default."""

_CACHE = re.compile(r"CACHE|^(?:HF|TORCH|TRITON|XDG_[A-Z]+)_HOME$|^HOME$|^FLASHINFER_WORKSPACE_BASE$")
_KEY_FILE = re.compile(r"/etc/sglang/[^/]+/secrets\.yml")
_READ_ONLY = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE")

HOMES = ("/home", "/root", "/run/user")
"""What ``ProtectHome=`` is about."""

_SHELLS = ("ash", "bash", "dash", "ksh", "sh", "zsh")
_CONTAINERS = ("docker", "nerdctl", "podman")
_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")
_SECONDS = {
    **dict.fromkeys(("us", "usec"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_LARGEST = 1 << 20
"""Bytes of a variable file above which nobody reads it here."""

_SHARED_VALUES = ("", "0", "1", "true", "false", "yes", "no", "on", "off", "none")
"""What a secret's name may hold that says nothing where it stands elsewhere: HF_HUB_DISABLE_IMPLICIT_TOKEN=1."""

_KEY_LOG = 'secrets = ("api_key", "admin_api_key", "ssl_keyfile_password")'
"""The line of patch api-key-log that both of its variants have."""

_PATCHED = {
    "triton-layer-probe": ("srt/layers/attention/triton_backend.py", "token_to_kv_pool.get_value_buffer(0)"),
    "swa-start-layer": ("srt/mem_cache/swa_memory_pool.py", "self.start_layer = 0"),
}
"""What a release's file says where a patch is not in force."""


@dataclass(frozen=True)
class VariableFile:
    """A file of EnvironmentFile=; ``text`` None where it is not there, ``shared`` where every user may read it.

    ``unread``  why nobody looked at it here; or empty
    """

    path: str
    text: str | None
    optional: bool = False
    shared: bool = False
    unread: str = ""


@dataclass(frozen=True)
class Host:
    """What only the node can tell.

    ``home``      of the unit's user; empty where it has none, None where nobody looked
    ``programs``  ``ninja``, ``nvcc`` and ``c++`` to their paths as the unit would find them, or to an empty text
    """

    home: str | None = None
    programs: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Service:
    """A unit as systemd runs it, and the engine in it.

    ``files``        those of EnvironmentFile=
    ``settings``     of [Service], and of [Unit] what limits starts; every value in order, those before a reset left out
    ``interpreter``  what runs SGLang; empty where no SGLang was found
    ``shell``        the shell that the command goes through, unless it replaces itself by ``exec``; or empty
    ``environment``  variables in force, files included
    ``flags``        exact names, values as SGLang's parser takes them
    ``written``      the same by the spelling that stands in the unit
    ``faults``       what SGLang's parser would not take
    ``inline``       variables that the command itself sets, by a shell or ``env``
    ``secrets``      texts that no output may repeat
    """

    unit: Unit
    files: tuple[VariableFile, ...]
    settings: Mapping[str, list[str]]
    interpreter: str
    shell: str
    environment: Mapping[str, str]
    flags: Mapping[str, object] = field(default_factory=dict)
    written: Mapping[str, object] = field(default_factory=dict)
    faults: tuple[Finding, ...] = ()
    inline: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()

    def last(self, name: str, default: str = "") -> str:
        """The value in force of a setting that has one."""
        values = self.settings.get(name, [])
        return values[-1] if values else default

    def words(self, *names: str) -> list[str]:
        """All words of settings that collect, without the signs before them."""
        return [word.lstrip("-+:") for name in names for value in self.settings.get(name, []) for word in value.split()]

    def on(self, name: str) -> bool:
        """Whether a setting is on."""
        return self.last(name).lower() in ("1", "yes", "true", "on")

    def seconds(self, *names: str) -> float | None:
        """A time span of the first of the settings that is given; infinity where there is no limit."""
        text = next((self.last(name) for name in names if self.last(name)), None)
        return None if text is None else span(text)

    @property
    def venv(self) -> str:
        """The folder of the virtual environment, or of whatever else has the interpreter in its ``bin``."""
        folder, name = os.path.split(os.path.dirname(self.interpreter))
        return folder if name == "bin" else ""

    @property
    def root(self) -> bool:
        """Whether it runs as root."""
        return self.last("User", "root") in ("root", "0") and not self.on("DynamicUser")

    @property
    def path(self) -> list[str]:
        return self.environment.get("PATH", SEARCH_PATH).split(":")

    @property
    def protect_home(self) -> str:
        """``no``, ``yes``, ``tmpfs`` or ``read-only``; DynamicUser= implies the last."""
        value = self.last("ProtectHome", "read-only" if self.on("DynamicUser") else "no").lower()
        return {"1": "yes", "true": "yes", "on": "yes"}.get(value, value)

    @property
    def strict(self) -> bool:
        """Whether the file system is read-only but for what is named."""
        return self.last("ProtectSystem").lower() == "strict" or self.on("DynamicUser")

    def hides(self, path: str) -> bool:
        """Whether the unit sees nothing at a path: systemd.exec(5), ``ProtectHome=``."""
        shown = self.words("BindPaths", "BindReadOnlyPaths")
        return self.protect_home in ("yes", "tmpfs") and _below(path, HOMES) and not _below(path, _targets(shown))

    def writes(self, path: str) -> bool:
        """Whether the sandbox lets the unit write to a path; file modes are not looked at."""
        made = {"CacheDirectory": "/var/cache", "StateDirectory": "/var/lib", "LogsDirectory": "/var/log"}
        named = [f"{folder}/{word.partition(':')[0]}" for name, folder in made.items() for word in self.words(name)]
        named += self.words("ReadWritePaths") + _targets(self.words("BindPaths"))
        if _below(path, named):
            return True
        if self.hides(path) or (self.protect_home == "read-only" and _below(path, HOMES)):
            return False
        return not self.strict or _below(path, ("/dev", "/proc", "/sys", "/run", *self._temporary))

    @property
    def _temporary(self) -> tuple[str, ...]:
        return ("/tmp", "/var/tmp") if self.private_tmp else ()  # noqa: S108

    @property
    def private_tmp(self) -> bool:
        """Whether /tmp is emptied at each stop."""
        return self.on("PrivateTmp") or self.on("DynamicUser")


def find(name: str, root: Path = Path("/")) -> list[Path]:
    """A unit's file and its drop-ins, in the order in which systemd reads them; ``name`` is a service's name or a path.

    Raises FileNotFoundError where there is no such unit, or it is masked.
    """
    if "/" in name:
        path = Path(name)
        _masked(path)
        if not path.is_file():
            raise FileNotFoundError(f"There is no unit {name}")
        return [path, *_drop_ins([path.parent], (path.name, path.resolve().name))]
    name = name if name.endswith(".service") else f"{name}.service"
    folders = [root / folder for folder in FOLDERS]
    for candidate in dict.fromkeys((name, _template(name))):
        for folder in folders:
            path = folder / candidate
            _masked(path)
            if path.is_file():
                target = path.resolve().name
                names = (name, candidate, *((target,) if target.endswith(".service") else ()))
                owners = (*names, *(prefix for owner in names for prefix in _prefixes(owner)), "service")
                return [path, *_drop_ins(folders, owners)]
    raise FileNotFoundError(f"There is no unit {name} in {', '.join(map(str, folders))}")


def _masked(path: Path) -> None:
    if path.is_symlink() and os.path.realpath(path) == os.devnull:
        raise FileNotFoundError(f"{path} masks the unit (it leads to {os.devnull}), which systemd does not start then")


def _template(name: str) -> str:
    return re.sub(r"@.*\.service$", "@.service", name)


def _prefixes(name: str) -> list[str]:
    """``a-b-.service`` and ``a-.service`` for ``a-b-c.service``: systemd.unit(5)."""
    words = re.split(r"@|\.service$", name)[0].split("-")
    return [f"{'-'.join(words[:count])}-.service" for count in range(len(words) - 1, 0, -1)]


def _drop_ins(folders: Sequence[Path], owners: Iterable[str]) -> list[Path]:
    found: dict[str, Path] = {}
    for owner in dict.fromkeys(owners):
        for folder in folders:
            for path in (folder / f"{owner}.d").glob("*.conf"):
                found.setdefault(path.name, path)
    # One that leads to /dev/null is there to hide those of its name.
    return [found[name] for name in sorted(found) if found[name].is_file()]


def read(paths: Sequence[Path], name: str = "") -> tuple[str, tuple[VariableFile, ...]]:
    """The text of a unit with its drop-ins, and the files that its EnvironmentFile= names. Raises OSError.

    ``name``  that of the unit, where its file has another one, as a template's has
    """
    text = "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)
    name = name if name and "/" not in name else paths[0].name
    written = _settings(units.parse_unit(text)).get("EnvironmentFile", [])
    return text, tuple(file for value in written for file in _variable_files(value, name.removesuffix(".service")))


def _variable_files(written: str, unit: str) -> Iterator[VariableFile]:
    """What one value of EnvironmentFile= names. Only regular files are opened: others may block."""
    pattern, optional = written.removeprefix("-"), written.startswith("-")
    prefix, template, instance = unit.partition("@")
    known = {"%": "%", "N": unit, "n": f"{unit}.service", "p": prefix}
    if instance or not template:
        known["i"] = instance
    path = re.sub(r"%(.)", lambda match: known.get(match[1], match[0]), pattern)
    if unknown := [letter for letter in re.findall(r"%(.)", pattern) if letter not in known]:
        why = f"%{unknown[0]} is not resolved"
        yield VariableFile(pattern, None, optional, unread=why)
    elif not path.startswith("/"):
        yield VariableFile(path, None, optional, unread="systemd ignores what does not begin with /")
    elif re.search(r"[*?[]", path) and (matched := sorted(glob.glob(path))):
        for one in matched:
            yield _variable_file(one, optional)
    else:
        yield _variable_file(path, optional)


def _variable_file(path: str, optional: bool) -> VariableFile:
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) and path != os.devnull:
            return VariableFile(path, None, optional, unread="it is no regular file")
        if status.st_size > _LARGEST:
            return VariableFile(path, None, optional, unread=f"it has more than {_LARGEST} bytes")
        content = Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return VariableFile(path, None, optional)
    return VariableFile(path, content, optional, bool(status.st_mode & 0o004) and path != os.devnull)


def resolve(service: Service) -> Service:
    """The service with the path of its interpreter, where only a name stands and this node tells which that is.

    A folder of the PATH that is not here, as for a unit from elsewhere, leaves the name as it is.
    """
    name = service.interpreter
    if not name or "/" in name:
        return service
    # systemd itself does not look along the unit's PATH: systemd.service(5), "Command lines".
    itself = any(argv[:1] == [name] for argv in service.unit.commands)
    folders = service.last("ExecSearchPath", SEARCH_PATH).split(":") if itself else service.path
    for folder in folders:
        if found := shutil.which(os.path.join(folder, name)):
            return replace(service, interpreter=found)
        if folder not in SEARCH_PATH.split(":") and not os.path.isdir(folder):
            break
    return service


def parse(text: str, files: Sequence[VariableFile] = (), table: FlagTable | None = None) -> Service:
    """The service that a unit's text, with its drop-ins appended, and its variable files describe."""
    table = table or FlagTable([])
    assigned = {name: value for file in files for name, value in variables(file.text or "").items()}
    # What a file says comes after all of Environment=, and into the command line as well.
    lines = [f"Environment={units.quote_environment(name, value)}" for name, value in assigned.items()]
    unit = units.parse_unit("\n".join((text, "[Service]", *lines)))
    settings = _settings(unit)
    environment = {name: value for name, value in unit.environment.items() if name not in _dropped(settings)}
    hidden = credentials.secrets(unit.environment)
    service = Service(unit, tuple(files), settings, "", "", environment)
    for argv in unit.commands:
        command, shell, more = _unwrap(argv)
        hidden |= credentials.secrets(more) | _secret_words(command, table)
        if not service.interpreter and (found := _engine(command)):
            interpreter, arguments, before = found
            inline = more | before
            hidden |= credentials.secrets(inline)
            written, faults = _arguments(arguments, table)
            service = replace(
                service,
                interpreter=interpreter,
                shell=shell,
                environment=environment | inline,
                flags={_exact(name, table): value for name, value in written.items()},
                written=written,
                faults=tuple(faults),
                inline=inline,
            )
    return replace(service, secrets=frozenset(text for text in hidden if text.lower() not in _SHARED_VALUES))


def conceal(text: str, secrets: Iterable[str]) -> str:
    """A text with ``***`` for each secret in it; short ones only where they are words of their own."""
    for secret in sorted(secrets, key=len, reverse=True):
        pattern = re.escape(secret) if len(secret) > 3 else rf"(?<!\w){re.escape(secret)}(?!\w)"
        text = re.sub(pattern, "***", text)
    return text


def concealed(findings: Iterable[Finding], secrets: Iterable[str]) -> list[Finding]:
    """The findings without any secret."""
    hidden = frozenset(secrets)
    return [
        replace(finding, seen=conceal(finding.seen, hidden), remedy=conceal(finding.remedy, hidden))
        for finding in findings
    ]


def shown(values: Mapping[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """Flags or variables of which none is a secret by its own name, nor holds one."""
    hidden = frozenset(secrets)
    found = {}
    for name, value in values.items():
        secret = name in flags.SECRETS or credentials.is_secret(name) or conceal(str(value), hidden) != str(value)
        found[conceal(name, hidden)] = "***" if secret else value
    return found


def difference(service: Service, planned: Service) -> list[str]:
    """A unified diff from a unit to the one that would stand in its place, both in one form, without secrets."""
    return list(difflib.unified_diff(_lines(service), _lines(planned), "now", "planned", n=1, lineterm=""))


def _lines(service: Service) -> list[str]:
    """What a unit says, a setting, a variable or a flag a line, the last two by name."""
    alike = ("Environment", "EnvironmentFile", "SetCredential", "ExecStart")
    variables = shown(service.environment, service.secrets)
    given = shown(service.flags, service.secrets)
    lines = [
        f"{name}={conceal(value, service.secrets)}"
        for name, values in sorted(service.settings.items())
        if name not in alike
        for value in values
    ]
    lines += [f"Environment={name}={value}" for name, value in sorted(variables.items())]
    lines.append(f"ExecStart={conceal(service.interpreter, service.secrets)} -m sglang.launch_server")
    return lines + [f"  {name} {value}" for name, value in sorted(given.items())]


def judge(service: Service, launch: Launch, host: Host = Host()) -> list[Finding]:
    """What is wrong with a unit: what systemd, SGLang's parser and the engine would say, then what nobody would.

    ``launch``  release, table, model and GPUs; its flags and environment are taken from the service
    """
    found = [*service.unit.findings, *service.faults]
    if service.interpreter:
        launch = replace(launch, flags=service.flags, environment=service.environment)
        found += _told(service, launch.table) if launch.table else []
        found += launch_rules.judge(launch)
    for rule in RULES:
        found += [
            Finding(f"audit.{rule.__name__}", severity, seen, remedy, source)
            for severity, seen, remedy, source in rule(service, launch, host)
        ]
    return concealed(found, service.secrets)


def _told(service: Service, table: FlagTable) -> list[Finding]:
    """What ``flags`` says, but that the parser takes a beginning that only one flag has."""
    found = []
    told: dict[str, object] = {}
    for name, value in service.written.items():
        exact = _exact(name, table)
        if name not in table and exact in table:
            seen = f"{name} is only the beginning of {exact}, and may be that of another flag in the next release"
            found.append(Finding("flag.abbreviation", "warning", seen, f"Write {exact}", flags.SOURCE))
        if not _secret(name, table):
            told[name if name in table else exact] = value
    return found + flags.check(told, table)


def span(text: str) -> float | None:
    """Seconds of a time span as systemd.time(7) writes it (``5min 20s``); None where it is none."""
    if text.strip() == "infinity":
        return float("inf")
    parts = [(match["number"], match["unit"]) for match in _SPAN.finditer(text)]
    if not parts or _SPAN.sub("", text).strip() or any(unit not in _SECONDS for _number, unit in parts):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def variables(text: str) -> dict[str, str]:
    """The assignments of a file of EnvironmentFile=: systemd.exec(5). ``$`` has no meaning there."""
    found: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n", "", text).splitlines():
        name, equals, value = line.strip().partition("=")
        name = name.strip()
        if line.lstrip()[:1] in ("#", ";") or not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            continue
        try:
            meant = "".join(shlex.split(value)) if re.search(r"[\"'\\]", value) else value.strip()
        except ValueError:
            continue
        found[name] = meant.replace("\0", "")
    return found


def distributions(venv: Path) -> dict[str, str]:
    """Names and versions of what is installed in a virtual environment, by its ``dist-info`` folders."""
    found = {}
    for path in venv.glob("lib/python3*/site-packages/*.dist-info"):
        name, _dash, version = path.name.removesuffix(".dist-info").partition("-")
        found[re.sub(r"[-_.]+", "-", name).lower()] = version
    return found


def patches(venv: Path) -> frozenset[str] | None:
    """Patches that are in force in an installed SGLang, by what its files say; None where there is none.

    A release that has a change of its own counts as patched. What ``pp-abort`` changes is told by
    ``Scheduler.abort_request``.
    """
    folder = next(venv.glob("lib/python3*/site-packages/sglang"), None)
    if folder is None:
        return None
    texts = {patch: _text(folder / file) for patch, (file, _unpatched) in _PATCHED.items()}
    found = {patch for patch, text in texts.items() if text and _PATCHED[patch][1] not in text}
    scheduler = _text(folder / "srt/managers/scheduler.py")
    abort = scheduler.partition("def abort_request(")[2].partition("def ")[0]
    # From 0.5.19 on abort_request calls a method that has the list.
    if "running_mbs" in abort or "inflight_batches = [*self.running_mbs, *self.mbs]" in scheduler:
        found.add("pp-abort")
    if any(_KEY_LOG in _text(folder / file) for file in ("srt/server_args.py", "srt/entrypoints/engine.py")):
        found.add("api-key-log")
    return frozenset(found)


# The rules: what they yield is severity, what was seen, remedy, source.

Found = Iterator[tuple[Severity, str, str, str]]
Rule = Callable[[Service, Launch, Host], Found]


def command(service: Service, launch: Launch, host: Host) -> Found:
    """Without SGLang's command there is nothing to judge."""
    if service.interpreter:
        return
    program = os.path.basename(service.unit.argv[0]) if service.unit.argv else ""
    if program in _CONTAINERS:
        yield "info", f"{program} runs the engine", "Judge the command inside the container by itself", HERE
    elif service.unit.argv:
        seen = f"ExecStart= runs {service.unit.argv[0]}, in which no SGLang can be seen"
        yield "error", seen, "Write python -m sglang.launch_server and its flags into ExecStart=", SERVICE
    else:
        yield "error", "the unit has no ExecStart=", "Name a service that runs SGLang", SERVICE


def exec_start(service: Service, launch: Launch, host: Host) -> Found:
    """Drop-ins must empty ExecStart= before they give another."""
    count, kind = len(service.unit.commands), service.last("Type", "simple")
    if count > 1 and kind != "oneshot":
        seen = f"ExecStart= names {count} commands, and systemd refuses such a unit of Type={kind}"
        yield "error", seen, "Keep one; in a drop-in write an empty ExecStart= before it", SERVICE


def flag_table(service: Service, launch: Launch, host: Host) -> Found:
    """Without the release's table no flag is compared with anything."""
    if service.interpreter and not launch.table:
        seen = "the flags of its SGLang cannot be read here, so that the unit's flags are not checked"
        yield "warning", seen, "Name the release (diagnose_release), or give its flag_table", HERE


def release(service: Service, launch: Launch, host: Host) -> Found:
    """Most rules are limited to releases."""
    if service.interpreter and not launch.release:
        seen = f"which SGLang {service.interpreter} runs is not known, so that what depends on it is not judged"
        yield "warning", seen, "Name the release, or look on the node itself", HERE


def config_file(service: Service, launch: Launch, host: Host) -> Found:
    """SGLang takes flags from a YAML file as well. That of this collection holds the API key, and nothing else."""
    if launch.given("--config") and not _KEY_FILE.fullmatch(launch.text("--config")):
        seen = f"more flags come from {launch.text('--config')}, which is not read here"
        yield "info", seen, "Judge them by hand, or write them into the unit", "sglang/srt/server_args_config_parser.py"


def json_value(service: Service, launch: Launch, host: Host) -> Found:
    """Without quotes around it, systemd takes the quotes inside away."""
    for name, value in service.written.items():
        flag = launch.table.get(name)
        if isinstance(value, str) and value.startswith("{") and (flag is None or flag.type != "json"):
            try:
                json.loads(value)
            except ValueError:
                seen = f"{name} gets {value}, which is no JSON: systemd has taken quotes or backslashes away"
                yield "error", seen, "Put the whole value into single quotes", SERVICE


def shell(service: Service, launch: Launch, host: Host) -> Found:
    """A shell is the main process: it gets the signals, and reads quotes and $ once more."""
    if service.shell:
        seen = f"ExecStart= runs the engine through {service.shell}, which gets the signal to stop in its place"
        yield "warning", seen, "Write the engine's command itself into ExecStart=, or exec before it", SERVICE


def secret_flag(service: Service, launch: Launch, host: Host) -> Found:
    """Argument lists are readable by every user."""
    exact = {_exact(flag, launch.table) for flag in service.written}
    for name in sorted(exact & flags.SECRETS):
        seen = f"{name} stands in the unit, in the process list, and in the log of SGLang's start"
        yield "error", seen, "Give it by --config and a file of mode 0600", flags.SOURCE


def secret_variable(service: Service, launch: Launch, host: Host) -> Found:
    """Units are readable by every user."""
    loaded = {name for file in service.files for name in variables(file.text or "")}
    # What a shell is still to read from elsewhere does not stand there.
    inline = {name: value for name, value in service.inline.items() if value[:1] not in ("$", "`")}
    for name, value in (*service.unit.environment.items(), *inline.items()):
        if (name not in loaded or name in inline) and credentials.secrets({name: value}):
            seen = f"{name} stands in the unit, which every user can read"
            yield "error", seen, "Move it to a file of mode 0600, and name that by EnvironmentFile=", EXEC
    for file in service.files:
        if file.shared and (held := sorted(filter(credentials.is_secret, variables(file.text or "")))):
            seen = f"every user can read {file.path}, which holds {', '.join(held)}"
            yield "error", seen, f"Set its mode to 0600: chmod 600 {file.path}", EXEC


def variable_file(service: Service, launch: Launch, host: Host) -> Found:
    """A file that must be there is one that the unit does not start without."""
    for file in service.files:
        if file.unread:
            seen = f"EnvironmentFile={file.path} is not read here: {file.unread}"
            yield "info", seen, "Look at its variables by hand", EXEC
        elif file.text is None and not file.optional:
            seen = f"{file.path} cannot be read, and the unit does not start without it"
            yield "error", seen, "Make the file, or write a dash before its name in EnvironmentFile=", EXEC


def exposed(service: Service, launch: Launch, host: Host) -> Found:
    """Whoever reaches an engine without a key may use it, and read its settings."""
    address = launch.text("--host") or "127.0.0.1"
    keyed = launch.given("--api-key") is not None or _KEY_FILE.fullmatch(launch.text("--config"))
    if not service.interpreter or _loopback(address) or keyed:
        return
    remedy = "Listen on 127.0.0.1 with an authenticating proxy before it, or give a key by a file"
    if launch.given("--config"):
        yield "warning", f"it listens on {address}, and the unit gives no key", f"{remedy} if that has none", HERE
    else:
        yield "error", f"it listens on {address} without a key: whoever reaches it may use it", remedy, HERE


def root(service: Service, launch: Launch, host: Host) -> Found:
    """An engine loads code and files from others, and needs no privilege."""
    if service.root:
        yield "warning", "it runs as root", "Make a user for it, and name that by User=", EXEC


def kill_mode(service: Service, launch: Launch, host: Host) -> Found:
    """Only the main process drains; the others end at once at the signal, and the requests with them."""
    mode = service.last("KillMode", "control-group")
    if mode in ("process", "none"):
        seen = f"KillMode={mode} leaves SGLang's other processes behind, with the GPUs' memory"
        yield "error", seen, "Set KillMode=mixed", KILL
    elif mode != "mixed":
        given = "KillMode= is not set: systemd" if "KillMode" not in service.settings else f"KillMode={mode}"
        seen = f"{given} ends SGLang's schedulers at once, before it has answered what it holds"
        yield "warning", seen, "Set KillMode=mixed", KILL


def stop_timeout(service: Service, launch: Launch, host: Host) -> Found:
    """What is not answered by then is cut."""
    limit = service.seconds("TimeoutStopSec", "TimeoutSec")
    if limit is None:
        seen = "TimeoutStopSec= is not set: requests that take longer than systemd's 90 s are cut at a stop"
        yield "warning", seen, "Set it above the longest answer", SERVICE
    elif limit in (0, float("inf")):
        seen = "TimeoutStopSec= sets no limit: a stop that hangs, as behind a router, never ends"
        yield "warning", seen, "Set it above the longest answer", SERVICE


def clean_stop(service: Service, launch: Launch, host: Host) -> Found:
    """SGLang ends itself with SIGKILL when the last request is answered."""
    if service.last("KillMode") == "mixed" and "SIGKILL" not in service.words("SuccessExitStatus"):
        seen = "a clean stop ends in the state failed: SGLang ends itself with SIGKILL"
        yield "info", seen, "Set SuccessExitStatus=SIGKILL and RestartForceExitStatus=SIGKILL", HERE


def restart(service: Service, launch: Launch, host: Host) -> Found:
    """systemd's own limit, 5 starts in 10 s, is never met by an engine that fails after a minute."""
    value = service.last("Restart", "no")
    if value == "no":
        yield "info", "Restart= is not set: an engine that crashes stays away", "Set Restart=on-failure", SERVICE
    elif not service.seconds("StartLimitIntervalSec", "StartLimitInterval"):
        seen = f"Restart={value} without StartLimitIntervalSec=: an engine that cannot start is started for ever"
        yield "warning", seen, "Set StartLimitIntervalSec= above StartLimitBurst= times a start", UNIT


def start(service: Service, launch: Launch, host: Host) -> Found:
    """SGLang sends systemd no message, and stays in the foreground."""
    kind = service.last("Type", "simple")
    limit = service.seconds("TimeoutStartSec", "TimeoutSec")
    waits = bool(service.settings.get("ExecStartPost"))
    if kind in ("notify", "notify-reload", "forking", "oneshot", "dbus"):
        seen = f"Type={kind} waits for what SGLang never does, so that the unit never gets active"
        yield "error", seen, "Set Type=exec, and wait for /health in ExecStartPost=", SERVICE
    elif waits and limit is None:
        seen = "TimeoutStartSec= is not set: systemd ends a start that takes longer than 90 s, as loading weights does"
        yield "error", seen, "Set it to three times what loading takes, 1800 s at least", SERVICE
    elif waits and limit in (0, float("inf")):
        seen = "TimeoutStartSec= sets no limit: a start that hangs never ends"
        yield "warning", seen, "Set it to three times what loading takes, 1800 s at least", SERVICE
    elif not waits:
        seen = f"Type={kind} calls the unit active minutes before SGLang answers"
        yield "info", seen, "Wait for /health in ExecStartPost=, with a TimeoutStartSec=", SERVICE


def search_path(service: Service, launch: Launch, host: Host) -> Found:
    """Kernels are compiled at run time, by ninja and a compiler that are looked for by name."""
    folder = os.path.dirname(service.interpreter)
    wanted = f"Set PATH by Environment= to {folder}, the toolkit's bin, then {SEARCH_PATH}"
    if not service.interpreter:
        return
    if host.programs is not None:
        for program in ("ninja", "c++"):
            if not host.programs.get(program):
                seen = f"{program} is not reachable from the unit (PATH={':'.join(service.path)})"
                yield "error", seen, wanted if program == "ninja" else "Install g++", "anthony-chaudhary/fak#923"
    elif folder and folder not in service.path:
        seen = f"{folder} is not on the unit's PATH, and FlashInfer looks for ninja there"
        yield "warning", seen, wanted, "anthony-chaudhary/fak#923"


def toolkit(service: Service, launch: Launch, host: Host) -> Found:
    """FlashInfer and SGLang's own kernels look for CUDA_HOME, CUDA_PATH, then nvcc on the PATH."""
    if not service.interpreter:
        return
    if host.programs is not None and not host.programs.get("nvcc"):
        yield "error", "nvcc is not reachable from the unit", "Install a CUDA toolkit, and set CUDA_HOME to it", HERE
    elif not {"CUDA_HOME", "CUDA_PATH"} & set(service.environment):
        seen = "CUDA_HOME is not set: which nvcc compiles the kernels depends on what is installed"
        yield "warning", seen, "Set CUDA_HOME to the toolkit of the release's CUDA", HERE


def unwritable(environment: Mapping[str, object], jit_cache: str) -> list[Finding]:
    """Caches that the instance's own unit could not write to, or would lose, however its settings name them.

    ``environment``  variable -> value, as the unit gets them
    ``jit_cache``    folder below /var/cache that systemd makes for the unit

    The unit's sandbox is ProtectSystem=strict, ProtectHome=true and PrivateTmp=true. A cache of Hugging Face that is
    only read from may lie wherever it can be read.
    """
    sandbox = {"ProtectSystem": "strict", "ProtectHome": "true", "PrivateTmp": "true", "User": "sglang"}
    settings = {name: [value] for name, value in sandbox.items()}
    settings["CacheDirectory"] = [os.path.relpath(jit_cache, "/var/cache")]
    service = Service(Unit({}), (), settings, "", "", {})
    found = []
    for name, value in environment.items():
        path = os.path.normpath(str(value))
        if not (_CACHE.search(name) and str(value).startswith("/")):
            continue
        if service.hides(path):
            why = "lies where the unit sees nothing (ProtectHome=)"
        elif _below(path, ("/tmp", "/var/tmp")):  # noqa: S108
            why = "is emptied at every stop (PrivateTmp=)"
        elif name not in _READ_ONLY and not service.writes(path):
            why = "is read-only for the unit (ProtectSystem=)"
        else:
            continue
        remedy = f"Leave {name} to the plan, or name a folder below {jit_cache}"
        found.append(Finding("unit.cache", "error", f"{name}={path} {why}", remedy, EXEC))
    return found


def caches(service: Service, launch: Launch, host: Host) -> Found:
    """Caches in a place that the unit does not see, may not write to, or that is emptied."""
    source = "Center-for-AI-Innovation/LLMFlux#124"
    for name in sorted(set(CACHES) & set(service.environment)):
        path = service.environment[name]
        if service.hides(path):
            seen = f"{name}={path} lies where the unit sees nothing (ProtectHome={service.protect_home})"
            yield "error", seen, "Name a folder below the unit's CacheDirectory=", source
        elif not service.writes(path):
            yield "error", f"{name}={path} is read-only for the unit", "Name a folder below its CacheDirectory=", source
        elif service.private_tmp and _below(path, ("/tmp", "/var/tmp")):  # noqa: S108
            seen = f"{name}={path} is emptied at every stop (PrivateTmp=)"
            yield "warning", seen, "Name a folder below the unit's CacheDirectory=", source
    home = service.environment.get("HOME", "/root" if service.root else host.home)
    left = sorted(set(CACHES) - set(service.environment) - {"XDG_CACHE_HOME"})
    if home is None or not left or not service.interpreter:
        return
    if home in ("", "/", "/nonexistent") or service.hides(home) or not service.writes(home):
        seen = f"the home {home or '(none)'} cannot be written to, and these lie there by default: {', '.join(left)}"
        yield "error", seen, "Set HOME and each of them to a folder below the unit's CacheDirectory=", source


def hidden_path(service: Service, launch: Launch, host: Host) -> Found:
    """What a sandbox hides, or only root may enter."""
    for what, path in (("the interpreter", service.interpreter), ("the model", launch.text("--model-path"))):
        if path.startswith("/") and (service.hides(path) or (_below(path, ("/root",)) and not service.root)):
            why = f"ProtectHome={service.protect_home}" if service.hides(path) else "only root may enter /root"
            remedy = "Move it, for example below /opt or /var/lib"
            yield "error", f"{what} {path} cannot be reached by the unit ({why})", remedy, EXEC


def devices(service: Service, launch: Launch, host: Host) -> Found:
    """Each of these closes the devices of the GPUs."""
    named = [name for name in ("PrivateDevices", "ProtectClock") if service.on(name)]
    allowed = any("nvidia" in word for word in service.words("DeviceAllow"))
    if service.last("DevicePolicy") in ("strict", "closed") and not allowed:
        named.append("DevicePolicy")
    if named:
        seen = f"{' and '.join(f'{name}=' for name in named)} closes the devices of the GPUs"
        yield "error", seen, f"Remove {' and '.join(named)}", EXEC


def jit_memory(service: Service, launch: Launch, host: Host) -> Found:
    """Kernels are compiled into memory that is then executed."""
    if service.on("MemoryDenyWriteExecute"):
        seen = "MemoryDenyWriteExecute= forbids memory that is written and executed, which compiled kernels are"
        yield "error", seen, "Remove MemoryDenyWriteExecute=", EXEC


def limits(service: Service, launch: Launch, host: Host) -> Found:
    """Services do not read limits.conf."""
    if service.interpreter and service.last("LimitMEMLOCK") != "infinity":
        seen = "LimitMEMLOCK= is not infinity: memory pinned for the network or for offloading may be refused"
        yield (
            "info",
            seen,
            "Set LimitMEMLOCK=infinity; /etc/security/limits.conf is not for services",
            "ai4d-iasc/trixie#81",
        )


RULES: tuple[Rule, ...] = (
    command,
    exec_start,
    flag_table,
    release,
    config_file,
    json_value,
    shell,
    secret_flag,
    secret_variable,
    variable_file,
    exposed,
    root,
    kill_mode,
    stop_timeout,
    clean_stop,
    restart,
    start,
    search_path,
    toolkit,
    caches,
    hidden_path,
    devices,
    jit_memory,
    limits,
)


def _settings(unit: Unit) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    limits_of_starts = [(name, value) for name, value in unit.sections.get("Unit", []) if name.startswith("StartLimit")]
    for name, value in (*limits_of_starts, *unit.sections.get("Service", [])):
        found[name] = [*found.get(name, []), value] if value else []
    return found


def _dropped(settings: Mapping[str, list[str]]) -> set[str]:
    return {word.partition("=")[0] for value in settings.get("UnsetEnvironment", []) for word in value.split()}


def _unwrap(argv: list[str]) -> tuple[list[str], str, dict[str, str]]:
    """The command inside a shell's script, the shell unless it is replaced, and variables that the script sets."""
    name = os.path.basename(argv[0]) if argv else ""
    if name not in _SHELLS or len(argv) < 3 or not re.fullmatch(r"-[a-z]*c", argv[1]):
        return argv, "", {}
    lexer = shlex.shlex(argv[2], posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) <= set(";&|"):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:
        return argv, name, {}
    more: dict[str, str] = {}
    for words in commands:
        if words[:1] == ["export"]:
            more |= dict(word.split("=", 1) for word in words[1:] if "=" in word)
        elif words and words[-1].endswith("/bin/activate"):
            more["PATH"] = f"{os.path.dirname(words[-1])}:{SEARCH_PATH}"
        elif _engine(words):
            return (words[1:], "", more) if words[0] == "exec" else (words, name, more)
    return argv, name, {}


def _engine(words: Sequence[str]) -> tuple[str, list[str], dict[str, str]] | None:
    """What runs SGLang, its arguments, and variables that are set before it (``env NAME=value python …``)."""
    for index, word in enumerate(words):
        name = os.path.basename(word)
        if name == "sglang" and list(words[index + 1 : index + 2]) == ["serve"]:
            interpreter, first = word, index + 2
        elif word == "-m" and list(words[index + 1 : index + 2]) == ["sglang.launch_server"]:
            interpreter, first = _python(words[:index]), index + 2
        elif name == "launch_server.py":
            interpreter, first = _python(words[:index]) or word, index + 1
        else:
            continue
        before = dict(part.split("=", 1) for part in words[:index] if re.match(r"[A-Za-z_][A-Za-z0-9_]*=", part))
        return interpreter or word, list(words[first:]), before
    return None


def _python(words: Sequence[str]) -> str:
    return next((word for word in reversed(words) if os.path.basename(word).startswith("python")), "")


def _arguments(arguments: Sequence[str], table: FlagTable) -> tuple[dict[str, object], list[Finding]]:
    """Flags by the spelling that is written, and what SGLang's parser refuses or reads otherwise than meant."""
    found: dict[str, object] = {}
    faults = []
    names: dict[str, str] = {}
    for name, values in _groups(arguments):
        if not name:
            seen = f"{' '.join(values)} belongs to no flag; SGLang refuses it when it parses its arguments"
            faults.append(Finding("audit.argument", "error", seen, "Remove it", flags.SOURCE))
            continue
        exact = _exact(name, table)
        flag = table.get(exact)
        if exact in names:
            seen = f"{names[exact]} is given more than once, and the last one wins"
            faults.append(Finding("audit.flag_twice", "warning", seen, "Keep one", flags.SOURCE))
            found.pop(names[exact], None)
        names[exact] = name
        several = exact not in flags.SECRETS if flag is None else flag.kind == "list"
        most = len(values) if several else int(flag is None or flag.kind == "value")
        if len(values) > most:
            more = "more words" if _secret(name, table) else " ".join(values[most:])
            seen = f"{name} is followed by {more}, which SGLang refuses when it parses its arguments"
            faults.append(Finding("audit.argument", "error", seen, "Remove it", flags.SOURCE))
        if flag and flag.kind != "switch" and not values and not flag.bare:
            seen = f"{name} has no value; SGLang refuses it when it parses its arguments"
            faults.append(Finding("audit.argument", "error", seen, "Give it a value, or remove it", flags.SOURCE))
            continue
        kept = values[:most]
        if (flag and flag.kind == "list") or len(kept) > 1:
            found[name] = kept
        else:
            found[name] = kept[0] if kept else True
    return found, faults


def _groups(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words after it, up to the next flag."""
    name, values = "", list[str]()
    for word in arguments:
        if word.startswith("--") and len(word) > 2:
            if name or values:
                yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if name or values:
        yield name, values


def _exact(name: str, table: FlagTable) -> str:
    """A flag's own name; SGLang's parser takes any beginning that only one flag has."""
    if name not in table:
        longer = {table[spelling].name for spelling in table if spelling.startswith(name)}
        if not table and name != "--ssl-keyfile":
            longer = {secret for secret in flags.SECRETS if secret.startswith(name)}
        return longer.pop() if len(longer) == 1 else name
    return table[name].name


def _secret(name: str, table: FlagTable) -> bool:
    """Whether a flag's value must not be shown; one that no table knows may be a secret's by its look."""
    exact = _exact(name, table)
    if exact in flags.SECRETS or exact in table:
        return exact in flags.SECRETS
    meant = exact.lower().replace("_", "-")
    like = meant != "--ssl-keyfile" and any(secret.startswith(meant) for secret in flags.SECRETS)
    return like or credentials.is_secret(meant[2:].replace("-", "_"))


def _secret_words(arguments: Sequence[str], table: FlagTable) -> set[str]:
    # A name that was meant as a flag's but has one dash, too.
    dashed = [f"-{word}" if re.match("-[a-z]{3}", word) else word for word in arguments]
    return {value for name, values in _groups(dashed) if name and _secret(name, table) for value in values}


def _loopback(address: str) -> bool:
    address = address.removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _below(path: str, folders: Iterable[str]) -> bool:
    path = os.path.normpath(path)
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _targets(words: Iterable[str]) -> list[str]:
    """Where ``source:target`` leads."""
    return [word.split(":")[1] if ":" in word else word for word in words]


def _text(path: Path) -> str:
    """A file's text; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
