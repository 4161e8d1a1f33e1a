# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node is: read in one pass from its files, nothing changed, nothing run but a foreign Python interpreter."""

from __future__ import annotations

import contextlib
import grp
import ipaddress
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils import weights, wheels
from ansible_collections.inference.sglang.plugins.module_utils.settings import NodeSettings

NVIDIA = "0x10de"
DISPLAY_CLASS = "0x03"
DRIVER_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
)
NUMA_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/libnuma.so.1",
    "/lib/x86_64-linux-gnu/libnuma.so.1",
    "/usr/lib64/libnuma.so.1",
    "/usr/lib/libnuma.so.1",
)

HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108
"""Folders that ``ProtectHome=true`` and ``PrivateTmp=true`` of the instance's unit hide: systemd.exec(5)."""


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA card: PCI ``address`` (``0000:01:00.0``) and ``device`` id (``0x2bb5``)."""

    address: str
    device: str


@dataclass(frozen=True)
class Space:
    """The mount that a path lies on or would lie on.

    ``mount``       mount point; hard links do not cross it, not even to another mount of the same file system
    ``device``      ``major:minor``; mounts with one device share their space
    ``free_bytes``  what an unprivileged process may still write
    """

    path: str
    mount: str
    device: str
    free_bytes: int


@dataclass(frozen=True)
class Listener:
    """A TCP socket in state LISTEN; ``pid`` 0, ``command`` and ``unit`` empty where the kernel did not tell."""

    address: str
    port: int
    pid: int
    command: str
    unit: str


@dataclass(frozen=True)
class InstalledRelease:
    """A release folder whose ``manifest.json`` is written, which is the last step of an installation."""

    folder: str
    version: str
    lock: str


@dataclass(frozen=True)
class Obstacle:
    """A file or folder that keeps a user from reading the model: ``why`` names its mode and owner, or what is off."""

    path: str
    why: str


@dataclass(frozen=True)
class ModelFiles:
    """What lies at a model's path.

    ``exists``     false also where a parent folder is missing
    ``folder``     whether it is a folder, and ``config`` whether that has a ``config.json``
    ``hidden``     what the first of its links into a folder of ``HIDDEN`` leads to; empty where none does
    ``files``      number of files below (1 for a single file)
    ``obstacles``  what the service user may not read
    ``unseen``     the first path that the reading process itself may not look into; empty where it saw all
    ``stock``      what the files are, as far as completeness is judged by it; None where there are none
    ``fetched``    how they differ from what a role fetched; None where no role fetches them
    """

    path: str
    exists: bool
    files: int
    obstacles: tuple[Obstacle, ...]
    unseen: str
    folder: bool = True
    config: bool = True
    hidden: str = ""
    stock: weights.Stock | None = None
    fetched: weights.Fetched | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelFiles:
        """What ``dataclasses.asdict`` gave, also after JSON. Raises KeyError or TypeError for anything else."""
        stock, fetched = values.get("stock"), values.get("fetched")
        made = {
            "obstacles": tuple(Obstacle(**obstacle) for obstacle in values["obstacles"]),
            "stock": weights.Stock.from_dict(stock) if stock else None,
            "fetched": weights.Fetched.from_dict(fetched) if fetched else None,
        }
        return cls(**{**values, **made})


@dataclass(frozen=True)
class HiddenPath:
    """A path that the sandbox of the instance's unit hides: where ``path``, named by ``setting``, leads to."""

    setting: str
    path: str
    target: str


@dataclass(frozen=True)
class Login:
    """An entry of passwd(5)."""

    name: str
    uid: int
    shell: str


@dataclass(frozen=True)
class Account:
    """A user as file permissions see it."""

    name: str
    uid: int
    gids: frozenset[int]


@dataclass(frozen=True)
class NodeFacts:
    """One reading of a node.

    ``distribution``, ``distribution_version``  ``ID`` and ``VERSION_ID`` of os-release (``debian``, ``12``)
    ``architecture``       as the kernel says it (``x86_64``)
    ``glibc``, ``python``  ``major.minor``; empty where there is none
    ``driver``             first line of ``/proc/driver/nvidia/version``; empty where no driver is loaded
    ``driver_library``     path of an installed ``libcuda.so.1``; empty where there is none
    ``spaces``             by asked path
    ``listeners``          on the instance's port
    ``packages``           installed ones of those asked for, with their versions
    ``cached_locks``       digests of the locks whose wheels the cache holds
    ``model``              none where a role makes the model
    ``hidden``             those of the paths asked for that the instance's unit would not see
    ``login``              the local account of the service user's name; none where there is none yet
    ``python_headers``     whether the interpreter's folder of headers has ``Python.h``; None where nobody looked
    ``numa_library``       whether ``libnuma.so.1`` is installed; None where nobody looked
    ``systemd``            whether systemd is the init that runs; None where nobody looked
    ``model_stored``       bytes that lie where a role will fetch the model to
    ``download``           what lies there; none where nothing does, or where no role fetches the model
    """

    distribution: str
    distribution_version: str
    architecture: str
    glibc: str
    python: str
    gpus: tuple[Gpu, ...]
    driver: str
    driver_library: str
    spaces: Mapping[str, Space]
    listeners: tuple[Listener, ...]
    packages: Mapping[str, str]
    releases: tuple[InstalledRelease, ...]
    cached_locks: tuple[str, ...]
    toolkit_installed: bool
    model: ModelFiles | None
    hidden: tuple[HiddenPath, ...] = ()
    login: Login | None = None
    python_headers: bool | None = None
    numa_library: bool | None = None
    model_stored: int = 0
    systemd: bool | None = None
    download: ModelFiles | None = None

    def as_dict(self) -> dict[str, Any]:
        """The facts in the shape that the module returns."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], paths: Iterable[str] = ()) -> NodeFacts:
        """What ``as_dict`` gave, also after JSON. Raises KeyError or TypeError for anything else.

        ``paths``  those that ``spaces`` is to tell of; one that was not asked about lies on the mount of a parent
        """
        lists = {"gpus": Gpu, "listeners": Listener, "releases": InstalledRelease, "hidden": HiddenPath}
        made = {name: tuple(kind(**item) for item in values.get(name, ())) for name, kind in lists.items()}
        spaces = {path: Space(**known) for path, known in values["spaces"].items()}
        known = list(spaces.values())
        for path in paths:
            above = [space for space in known if Path(path).is_relative_to(space.mount)]
            if path not in spaces and above:
                spaces[path] = replace(max(above, key=lambda space: len(space.mount)), path=path)
        model, download = values.get("model"), values.get("download")
        login = values.get("login")
        return cls(
            **{
                **values,
                **made,
                "spaces": spaces,
                "cached_locks": tuple(values["cached_locks"]),
                "model": ModelFiles.from_dict(model) if model else None,
                "download": ModelFiles.from_dict(download) if download else None,
                "login": Login(**login) if login else None,
            }
        )


def read(settings: NodeSettings, root: Path = Path("/"), account: Account | None = None) -> NodeFacts:
    """Read a node; everything but the kernel's and the C library's own names comes from below ``root``.

    ``account``  the user that must read the model; looked up by ``settings.user`` where it is not given
    """
    root = root.resolve()
    system = os_release(root)
    return NodeFacts(
        distribution=system.get("ID", ""),
        distribution_version=system.get("VERSION_ID", ""),
        architecture=os.uname().machine,
        glibc=glibc(),
        python=python_version(settings.python),
        gpus=tuple(gpus(root)),
        driver=_first_line(root / "proc/driver/nvidia/version"),
        driver_library=next((path for path in DRIVER_LIBRARIES if _below(root, path).exists()), ""),
        spaces={path: space(path, root) for path in written(settings)},
        listeners=tuple(listeners(settings.port, root)),
        packages=packages(settings.packages, root),
        releases=tuple(releases(settings.releases_path, root)),
        cached_locks=tuple(cached_locks(settings.cache_path, root)),
        toolkit_installed=wheels.read_manifest(str(_below(root, settings.toolkit))) is not None,
        model=model_files(settings.model, account or account_of(settings.user), root) if settings.model else None,
        hidden=tuple(hidden(settings.unit_paths, root)),
        login=login(settings.user, root),
        python_headers=python_headers(settings.python, root),
        numa_library=any(_below(root, path).exists() for path in NUMA_LIBRARIES),
        systemd=(root / "run/systemd/system").is_dir(),
        model_stored=weights.stored(_below(root, settings.model_download)) if settings.model_download else 0,
        download=_download(settings, account, root) if settings.model_download else None,
    )


def written(settings: NodeSettings) -> tuple[str, ...]:
    """The folders that the roles will write much to."""
    folders = (settings.releases_path, settings.cache_path, settings.toolkit, settings.model_download)
    return tuple(folder for folder in folders if folder)


def os_release(root: Path) -> dict[str, str]:
    """The assignments of os-release, unquoted (os-release(5))."""
    for name in ("etc/os-release", "usr/lib/os-release"):
        try:
            text = (root / name).read_text(encoding="utf-8")
        except OSError:
            continue
        pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        return {key: value.strip().strip("\"'") for key, value in pairs}
    return {}


def glibc() -> str:
    """Version of the GNU C library that this process runs on; empty on another C library."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def python_version(interpreter: str) -> str:
    """``major.minor`` of an interpreter, which is run only if it is not this one; empty where it does not answer."""
    own = "{}.{}".format(*sys.version_info)
    return _asked(interpreter, own, "import sys; print('{}.{}'.format(*sys.version_info))")


def python_headers(interpreter: str, root: Path) -> bool | None:
    """Whether an interpreter's headers are installed; those of its base where it is of a virtual environment. None
    where it does not answer.
    """
    own = sysconfig.get_path("include")
    folder = _asked(interpreter, own, "import sysconfig; print(sysconfig.get_path('include'))")
    return _below(root, folder, "Python.h").exists() if folder else None


def _asked(interpreter: str, own: str, program: str) -> str:
    """What an interpreter prints; ``own`` if it is this one. Empty where it does not answer."""
    found = shutil.which(interpreter)
    if found is None:
        return ""
    if os.path.realpath(found) == os.path.realpath(sys.executable):
        return own
    try:
        # pylint: disable-next=ansible-bad-function # the core knows no AnsibleModule
        answer = subprocess.run([found, "-I", "-c", program], capture_output=True, check=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


def gpus(root: Path) -> Iterator[Gpu]:
    """NVIDIA display controllers on the PCI bus (class 0x03), whether or not a driver is loaded."""
    for device in sorted(root.glob("sys/bus/pci/devices/*")):
        if _first_line(device / "vendor") == NVIDIA and _first_line(device / "class").startswith(DISPLAY_CLASS):
            yield Gpu(device.name, _first_line(device / "device"))


def space(path: str, root: Path) -> Space:
    """The mount of a path that need not exist yet: that of its nearest existing parent."""
    here = _below(root, path)
    while not here.exists():
        here = here.parent
    resolved = Path("/") / here.resolve().relative_to(root)
    mount, device = _mount(resolved, root)
    status = os.statvfs(here)
    return Space(path, mount, device, status.f_bavail * status.f_frsize)


def listeners(port: int, root: Path) -> list[Listener]:
    """Who listens on a TCP port: proc(5), ``/proc/net/tcp`` and the sockets that processes hold open."""
    sockets: dict[str, str] = {}
    for name in ("proc/net/tcp", "proc/net/tcp6"):
        for line in _lines(root / name)[1:]:
            field = line.split()
            address, hex_port = field[1].split(":")
            if field[3] == "0A" and int(hex_port, 16) == port:
                sockets[field[9]] = _address(address)
    owners = _owners(sockets, root) if sockets else {}
    found = []
    for inode, address in sockets.items():
        pid = owners.get(inode, 0)
        process = root / "proc" / str(pid)
        found.append(Listener(address, port, pid, _first_line(process / "comm"), unit_of(process)))
    return found


def packages(names: Iterable[str], root: Path) -> dict[str, str]:
    """Versions of those Debian packages that are installed: dpkg's status file."""
    wanted = set(names)
    found: dict[str, str] = {}
    if not wanted:
        return found
    name, installed = "", False
    for line in _lines(root / "var/lib/dpkg/status"):
        if line.startswith("Package: "):
            name, installed = line[9:], False
        elif line.startswith("Status: "):
            installed = line.endswith(" installed")
        elif line.startswith("Version: ") and installed and name in wanted:
            found[name] = line[9:]
    return found


def releases(releases_path: str, root: Path) -> Iterator[InstalledRelease]:
    """The release folders that are complete; one without a readable manifest is not."""
    for path in sorted(_below(root, releases_path).glob(f"*/{wheels.MANIFEST}")):
        manifest = wheels.read_manifest(str(path.parent))
        if manifest is not None:
            yield InstalledRelease(path.parent.name, str(manifest.get("version")), str(manifest.get("lock")))


def cached_locks(cache_path: str, root: Path) -> list[str]:
    """Digests of the locks whose wheels the cache already holds."""
    markers = wheels.cache_marker(str(_below(root, cache_path)), "").parent
    return sorted(path.name for path in markers.iterdir()) if markers.is_dir() else []


def account_of(name: str) -> Account:
    """A user by name, from wherever the node keeps its users; one that is not there is nobody's owner or member."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return Account(name, -1, frozenset())
    return Account(name, user.pw_uid, frozenset(os.getgrouplist(name, user.pw_gid)))


def login(name: str, root: Path) -> Login | None:
    """The local account of a name: passwd(5)."""
    for line in _lines(root / "etc/passwd"):
        field = line.split(":")
        if field[0] == name and len(field) >= 7 and field[2].isdigit():
            return Login(name, int(field[2]), field[6])
    return None


def hidden(paths: Mapping[str, str], root: Path) -> Iterator[HiddenPath]:
    """Which paths lie, by name or behind links, where the instance's unit sees empty folders (``HIDDEN``)."""
    for setting, path in paths.items():
        try:
            target = _shown(_below(root, path).resolve(), root)
        except (OSError, RuntimeError):  # a loop of links
            continue
        for place in (os.path.normpath(path), target):
            if _is_hidden(place):
                yield HiddenPath(setting, path, place)
                break


def _is_hidden(path: str) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in HIDDEN)


def _shown(path: Path, root: Path) -> str:
    """The path as the node knows it."""
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)


def model_files(path: str, account: Account, root: Path) -> ModelFiles:
    """Whether a user may read every file of a model, judged by owner, group and mode of it and of its parents.

    Files with an access control list are left to the check as that user, which role ``sglang_server`` makes.
    """
    top = _below(root, path)
    gate = _Gate(root, account)
    try:
        top.stat()
    except PermissionError:
        return ModelFiles(path, True, 0, (), path)
    except OSError:
        return ModelFiles(path, False, 0, (), "")
    unseen: list[str] = []

    def note(error: OSError) -> None:
        unseen.append(gate.shown(Path(error.filename)))

    gate.check(top, 0o5 if top.is_dir() else 0o4)
    files = 0 if top.is_dir() else 1
    for folder, _subfolders, names in os.walk(top, onerror=note):
        gate.check(Path(folder), 0o5)
        for name in names:
            files += 1
            gate.check(Path(folder, name), 0o4)
    return ModelFiles(
        path,
        True,
        files,
        tuple(gate.obstacles),
        (unseen + gate.unseen + [""])[0],
        folder=top.is_dir(),
        config=os.path.isfile(top / "config.json"),
        hidden=next(iter(gate.hidden), ""),
        stock=weights.take(top, path) if files and top.is_dir() else None,
    )


def _download(settings: NodeSettings, account: Account | None, root: Path) -> ModelFiles | None:
    """What lies where a role will fetch the model to, but for what only the role itself reads."""
    path = settings.model_download
    files = model_files(path, account or account_of(settings.user), root)
    if not files.exists or (files.folder and not files.files and not files.unseen):
        return None
    own = f"{path.rstrip('/')}/{weights.OWN}/"
    return replace(
        files,
        obstacles=tuple(obstacle for obstacle in files.obstacles if not obstacle.path.startswith(own)),
        fetched=weights.fetched(_below(root, path)),
    )


class _Gate:
    """Judges each file and folder on the way once."""

    def __init__(self, root: Path, account: Account) -> None:
        self.root = root
        self.account = account
        self.obstacles: list[Obstacle] = []
        self.unseen: list[str] = []
        self.hidden: list[str] = []
        self._judged: set[Path] = set()

    def shown(self, path: Path) -> str:
        """The path as the node knows it."""
        return _shown(path, self.root)

    def check(self, path: Path, need: int) -> None:
        """Judge a path, what it links to, and the folders on the way to both; ``need`` is bits of ``rwx``."""
        try:
            target = path.resolve(strict=True)
        except PermissionError:
            self.unseen.append(self.shown(path))
            return
        except OSError:
            self.obstacles.append(Obstacle(self.shown(path), "a link to nothing"))
            return
        if _is_hidden(self.shown(target)):
            self.hidden.append(self.shown(target))
        for way in (path, target):
            for folder in reversed(way.parents):
                if folder.is_relative_to(self.root):
                    self._judge(folder, 0o1)
        self._judge(target, need)

    def _judge(self, path: Path, need: int) -> None:
        if path in self._judged:
            return
        self._judged.add(path)
        status = path.stat()
        if not _may(status, self.account, need) and not _has_acl(path):
            self.obstacles.append(Obstacle(self.shown(path), _permissions(status)))


def _may(status: os.stat_result, account: Account, need: int) -> bool:
    if account.uid == 0:
        return True
    if status.st_uid == account.uid:
        return status.st_mode >> 6 & need == need
    if status.st_gid in account.gids:
        return status.st_mode >> 3 & need == need
    return status.st_mode & need == need


def _has_acl(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False


def _permissions(status: os.stat_result) -> str:
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = str(status.st_uid)
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    return f"{owner}:{group} {stat.S_IMODE(status.st_mode):04o}"


def _below(root: Path, *parts: str) -> Path:
    return root.joinpath(*(part.lstrip("/") for part in parts))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _first_line(path: Path) -> str:
    return (_lines(path) or [""])[0].strip()


def _mount(path: Path, root: Path) -> tuple[str, str]:
    """Mount point and device of a path: proc(5), ``mountinfo``, where the last of equal mount points is on top."""
    best = ("/", "")
    for line in _lines(root / "proc/self/mountinfo"):
        field = line.split()
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field[4])
        if path.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, field[2])
    return best


def _address(text: str) -> str:
    """An address of ``/proc/net/tcp{,6}``: 32-bit words, each in the byte order of the machine."""
    packed = b"".join(int(text[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(text), 8))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _owners(inodes: Iterable[str], root: Path) -> dict[str, int]:
    """Process of each socket; of several that share one, the lowest, which is the eldest."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    owners: dict[str, int] = {}
    for process in sorted(int(path.name) for path in (root / "proc").iterdir() if path.name.isdigit()):
        for target in _descriptors(root / "proc" / str(process) / "fd"):
            if target in wanted:
                owners.setdefault(wanted[target], process)
    return owners


def _descriptors(folder: Path) -> list[str]:
    """What a process holds open; nothing if it has ended or belongs to someone else."""
    targets = []
    try:
        for descriptor in folder.iterdir():
            with contextlib.suppress(OSError):
                targets.append(os.readlink(descriptor))
    except OSError:
        pass
    return targets


def unit_of(process: Path) -> str:
    """The systemd service of a process, by its folder in ``/proc``: the innermost one that its control group names, in
    either cgroup version.
    """
    for line in _lines(process / "cgroup"):
        services = [part for part in line.split(":", 2)[-1].split("/") if part.endswith(".service")]
        if services:
            return services[-1]
    return ""


def cgroup_of(process: Path) -> str:
    """The control group of a process: the deepest of its hierarchies; empty for one that has ended."""
    return max((line.split(":", 2)[-1] for line in _lines(process / "cgroup")), key=len, default="")
