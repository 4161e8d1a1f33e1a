# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""apt: who owns a repository's source, whose key signs it, and what an installation would do to the NVIDIA driver."""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit

from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

SOURCE = "/etc/apt/sources.list.d/inference-sglang-cuda.sources"
KEYRING = "/etc/apt/keyrings/inference-sglang-cuda.gpg"
PREFERENCES = "/etc/apt/preferences.d/inference-sglang-cuda.pref"
PROXY = "/etc/apt/apt.conf.d/90inference-sglang-cuda"
DISABLED = ".inference-sglang.disabled"
"""What is put behind the name of a file of someone else's. apt passes over files whose names end in ``.disabled``."""

OLDEST_BRANCH = 580
"""The first driver branch for CUDA 13: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/."""

_SOURCES_LIST = "https://manpages.debian.org/bookworm/apt/sources.list.5.en.html"
_PREFERENCES = "https://manpages.debian.org/bookworm/apt/apt_preferences.5.en.html"
_OPENPGP = "https://www.rfc-editor.org/rfc/rfc9580#name-key-ids-and-fingerprints"
OPEN_ONLY = "https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/"
GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
_META = "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/#meta-packages"

# The ports that a URL need not name.
_PORTS = {"http": 80, "https": 443}
# What apt takes for no: StringToBool in apt-pkg/contrib/strutl.cc.
_NO = ("no", "false", "without", "off", "disable", "0")


@dataclass(frozen=True)
class Place:
    """A repository as apt reaches it, however it is written: ``suite`` is empty where the path says all."""

    host: str
    path: str
    suite: str = ""

    @classmethod
    def of(cls, uri: str, suite: str) -> Place:
        """From the words of a source. A suite that ends in ``/`` is a path below the URI: sources.list(5)."""
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError:
            return cls("", uri, suite)
        host = (parts.hostname or "").lower()
        if port not in (None, _PORTS.get(parts.scheme)):
            host += f":{port}"
        flat = suite.endswith("/")
        steps = [step for step in unquote(f"{parts.path}/{suite if flat else ''}").split("/") if step not in ("", ".")]
        return cls(host, "/".join(steps), "" if flat else suite)


@dataclass(frozen=True)
class Entry:
    """What a file of sources names: one line of a ``.list``, or one stanza of a ``.sources``.

    ``first``, ``last``  its lines, counted from 0, both included
    ``options``          by their names in deb822, in lower case (``signed-by``, ``architectures``)
    """

    first: int
    last: int
    types: tuple[str, ...]
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True

    @property
    def places(self) -> list[tuple[str, str, Place]]:
        """Each of its URIs with each of its suites, and what repository they are together."""
        return [(uri, suite, Place.of(uri, suite)) for uri, suite in itertools.product(self.uris, self.suites)]


@dataclass(frozen=True)
class Repository:
    """The repository that is wanted: as in sources.list(5), one URI and one suite."""

    url: str
    suite: str = "/"
    components: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()

    @property
    def place(self) -> Place:
        return Place.of(self.url, self.suite)

    def source(self, keyring: str = KEYRING) -> str:
        """The text of its deb822 file."""
        fields = {
            "Types": "deb",
            "URIs": self.url,
            "Suites": self.suite,
            "Components": " ".join(self.components),
            "Architectures": " ".join(self.architectures),
            "Signed-By": keyring,
        }
        lines = [f"{name}: {value}" for name, value in fields.items() if value]
        return "\n".join(["# Written by the role inference.sglang.cuda_repository.", *lines, ""])

    @staticmethod
    def preferences(pin: str, priority: int) -> str:
        """The text of its preferences: apt_preferences(5). Not by host: a mirror may serve more."""
        lines = ("Package: *", f"Pin: {pin}", f"Pin-Priority: {priority}")
        return "\n".join(["# Written by the role inference.sglang.cuda_repository.", *lines, ""])

    def proxy(self, proxy: str) -> str:
        """The text of an apt.conf that sets a proxy for its host alone; empty without one: apt-transport-http(1)."""
        if not proxy:
            return ""
        scheme, host = urlsplit(self.url).scheme, urlsplit(self.url).hostname
        return (
            f'// Written by the role inference.sglang.cuda_repository.\nAcquire::{scheme}::Proxy::{host} "{proxy}";\n'
        )


def entries(name: str, text: str) -> list[Entry]:
    """What a file of sources names, in order, also what is not enabled. Lines that apt would refuse are passed over."""
    return list(_stanzas(text) if name.endswith(".sources") else _one_line(text))


def _one_line(text: str) -> Iterator[Entry]:
    for number, line in enumerate(text.splitlines()):
        match = re.match(r"\s*(deb|deb-src)\s+(?:\[([^\]]*)\]\s*)?(\S+)\s+(\S+)\s*(.*)$", line.split("#", 1)[0])
        if match is None:
            continue
        kind, options, uri, suite, components = match.groups(default="")
        named = dict(re.findall(r"([\w-]+)[-+]?=(\S*)", options))
        names = {"arch": "architectures", "lang": "languages", "target": "targets"}
        yield Entry(
            number,
            number,
            (kind,),
            (uri.strip('"'),),
            (suite,),
            tuple(components.split()),
            {names.get(key.lower(), key.lower()): value.replace(",", " ") for key, value in named.items()},
        )


def _stanzas(text: str) -> Iterator[Entry]:
    lines = text.splitlines()
    for blank, numbers in itertools.groupby(range(len(lines)), key=lambda number: not lines[number].strip()):
        if blank:
            continue
        block = list(numbers)
        values = _fields([lines[number] for number in block])
        if not values.get("uris"):
            continue
        listed = ("types", "uris", "suites", "components")
        types, uris, suites, components = (tuple(values.pop(name, "").split()) for name in listed)
        enabled = values.pop("enabled", "yes").strip().lower() not in _NO
        yield Entry(block[0], block[-1], types, uris, suites, components, values, enabled)


def _fields(lines: Iterable[str]) -> dict[str, str]:
    """The fields of a stanza by their names in lower case: deb822(5)."""
    values: dict[str, str] = {}
    name = ""
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        if line[0] in " \t" and name:
            values[name] += "\n" + line.strip()
        elif ":" in line:
            name, _colon, value = line.partition(":")
            name = name.strip().lower()
            values[name] = value.strip()
    return values


@dataclass(frozen=True)
class Cleared:
    """A file of sources without a repository.

    ``text``   what is left; None where nothing else is enabled in it, so that it can go
    ``found``  the lines that named the repository, as they stood
    """

    text: str | None
    found: tuple[str, ...]


def clear(name: str, text: str, repository: Repository) -> Cleared:
    """Comment out whatever names a repository, and keep everything else of the file as it is."""
    lines = text.splitlines()
    found: list[str] = []
    for entry in reversed(entries(name, text)):
        same = {(uri, suite) for uri, suite, place in entry.places if place == repository.place}
        if not same or not entry.enabled:
            continue
        span = lines[entry.first : entry.last + 1]
        found[:0] = [line for line in span if not line.startswith("#")]
        lines[entry.first : entry.last + 1] = [*(f"# {line}" for line in span), *_rest(entry, span, same)]
    if not found:
        return Cleared(text, ())
    left = "\n".join(lines) + "\n"
    active = any(entry.enabled for entry in entries(name, left))
    return Cleared(left if active else None, tuple(found))


def _rest(entry: Entry, span: list[str], same: set[tuple[str, str]]) -> list[str]:
    """A stanza that names other repositories, too, without the one: as stanzas of whole URIs and of whole suites."""
    rest: list[str] = []
    hit = {uri for uri, _path in same}
    groups = [(tuple(uri for uri in entry.uris if uri not in hit), entry.suites)]
    groups += [
        ((uri,), tuple(suite for suite in entry.suites if (uri, suite) not in same)) for uri in entry.uris if uri in hit
    ]
    for uris, suites in groups:
        if not uris or not suites:
            continue
        rest.append("")
        skipping = False
        for line in span:
            name = line.partition(":")[0].strip().lower()
            if line.startswith("#") or (skipping and line[0] in " \t"):
                continue
            skipping = name in ("uris", "suites")
            if skipping:
                rest.append(f"{line.partition(':')[0]}: {' '.join(uris if name == 'uris' else suites)}")
            else:
                rest.append(line)
    return rest


def pins_repository(name: str, text: str) -> bool:
    """Whether a file of preferences is about NVIDIA's repository alone: its keyring package and old roles leave one.

    ``name``  its file name; NVIDIA's is ``cuda-repository-pin-600``
    """
    if name.startswith("cuda-repository-pin"):
        return True
    pins = [pin for block in re.split(r"\n\s*\n", text) if (pin := _fields(block.strip("\n").splitlines()))]
    words = re.compile(r"release\s+(?:\S.*,)?\s*l=NVIDIA CUDA\b")
    return bool(pins) and all(pin.get("package") == "*" and words.match(pin.get("pin", "")) for pin in pins)


@dataclass(frozen=True)
class Key:
    """A public key: ``fingerprint`` in upper case, ``secret`` where the packet holds the secret part, too."""

    fingerprint: str
    secret: bool = False


def binary(material: bytes) -> bytes:
    """The packets of a key file, without its armour. Raises ValueError for armour that is damaged (RFC 9580, 6)."""
    if b"-----BEGIN PGP" not in material:
        return material
    packets = b""
    blocks = re.findall(rb"-----BEGIN PGP [A-Z ]+-----\r?\n(.*?)-----END PGP", material, re.DOTALL)
    for block in blocks:
        # Headers, if there are any, end with an empty line.
        _headers, _blank, body = (b"\n" + block.replace(b"\r\n", b"\n")).partition(b"\n\n")
        lines = [line.strip() for line in body.split(b"\n") if line.strip()]
        check = lines.pop()[1:] if lines and lines[-1].startswith(b"=") else b""
        try:
            data = base64.b64decode(b"".join(lines), validate=True)
            told = base64.b64decode(check, validate=True) if check else None
        except binascii.Error as error:
            raise ValueError(f"its armour is damaged: {error}") from None
        if told is not None and told != _crc24(data):
            raise ValueError("its armour is damaged: the checksum is wrong")
        packets += data
    if not packets:
        raise ValueError("its armour has no end")
    return packets


def _crc24(data: bytes) -> bytes:
    register = 0xB704CE
    for byte in data:
        register ^= byte << 16
        for _bit in range(8):
            register <<= 1
            if register & 0x1000000:
                register ^= 0x1864CFB
    return (register & 0xFFFFFF).to_bytes(3, "big")


def keys(packets: bytes) -> list[Key]:
    """The primary keys of a key file. Raises ValueError where it is no sequence of OpenPGP packets, or is cut short.

    The fingerprint of a version 4 key is the SHA-1 of 0x99, two octets of length and the packet; of a version 6 key the
    SHA-256 of 0x9B, four octets of length and the packet: RFC 9580, 5.5.4.
    """
    found = []
    for tag, body in _packets(packets):
        if tag not in (5, 6):
            continue
        version = body[0] if body else 0
        if tag == 5:
            found.append(Key("", secret=True))
        elif version == 4:
            digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
            found.append(Key(digest.hexdigest().upper()))
        elif version == 6:
            prefix = b"\x9b" + len(body).to_bytes(4, "big")
            found.append(Key(hashlib.sha256(prefix + body).hexdigest().upper()))
        else:
            raise ValueError(f"it holds a key of version {version}; only versions 4 and 6 are known")
    return found


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and body of each packet: RFC 9580, 4.2."""
    position = 0
    while position < len(data):
        start, (header, data_left) = position, (data[position], len(data) - position)
        if not header & 0x80:
            raise ValueError(f"octet {start} begins no OpenPGP packet")
        if header & 0x40:
            tag, first = header & 0x3F, data[position + 1] if data_left > 1 else 255
            if first < 192:
                length, size = first, 1
            elif first < 224:
                length, size = ((first - 192) << 8) + int.from_bytes(data[position + 2 : position + 3], "big") + 192, 2
            else:
                length, size = int.from_bytes(data[position + 2 : position + 6], "big"), 5
        else:
            tag, size = (header >> 2) & 0x0F, 1 << (header & 3)
            length = int.from_bytes(data[position + 1 : position + 1 + size], "big")
        begin = position + 1 + size
        position = begin + length
        if position > len(data):
            raise ValueError(f"the packet at octet {start} is cut short")
        yield tag, data[begin:position]


@dataclass(frozen=True)
class KeyCheck:
    """A key file to judge: ``keys``, or the ``problem`` of reading it; ``accepted`` fingerprints; where it is from."""

    name: str
    accepted: tuple[str, ...]
    keys: tuple[Key, ...] = ()
    problem: str = ""

    @classmethod
    def of(cls, name: str, packets: bytes, accepted: Iterable[str]) -> KeyCheck:
        wanted = tuple(fingerprint.replace(" ", "").upper().removeprefix("0X") for fingerprint in accepted)
        try:
            return cls(name, wanted, tuple(keys(packets)))
        except ValueError as problem:
            return cls(name, wanted, problem=str(problem))


def judge_key(check: KeyCheck) -> list[Finding]:
    """Whether a key file may be trusted."""
    return [*unreadable_key(check), *secret_key(check), *fingerprint_form(check), *other_key(check)]


def unreadable_key(check: KeyCheck) -> list[Finding]:
    """A key file is one public key at least."""
    if check.keys:
        return []
    seen = f"{check.name} is no OpenPGP public key: {check.problem or 'it holds none'}"
    return [Finding("apt_key.unreadable", "error", seen, "Give the file that the repository publishes", _OPENPGP)]


def secret_key(check: KeyCheck) -> list[Finding]:
    """Who has the secret key can sign in the repository's name, and nodes need only the public one."""
    if not any(key.secret for key in check.keys):
        return []
    remedy = "Export the public key alone (gpg --export), and treat the secret one as known to others"
    return [Finding("apt_key.secret", "error", f"{check.name} holds a secret key", remedy)]


def fingerprint_form(check: KeyCheck) -> list[Finding]:
    """A short id can be made to fit by anyone."""
    wrong = [value for value in check.accepted if not re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", value)]
    if check.accepted and not wrong:
        return []
    seen = f"cuda_repository_key_fingerprints holds {wrong[0]!r}" if wrong else "No fingerprint of a key is accepted"
    remedy = "Set cuda_repository_key_fingerprints to whole fingerprints, of 40 or 64 hexadecimal digits"
    return [Finding("apt_key.fingerprint", "error", seen, remedy, "https://evil32.com")]


def other_key(check: KeyCheck) -> list[Finding]:
    """Every key of the file would be trusted, so every one must be known."""
    strange = [key.fingerprint for key in check.keys if not key.secret and key.fingerprint not in check.accepted]
    if not strange:
        return []
    return [
        Finding(
            "apt_key.other",
            "error",
            f"{check.name} holds the key {', '.join(strange)}; accepted: {', '.join(check.accepted) or 'none'}",
            "Compare it with what the repository's owner publishes, and only then add it to "
            "cuda_repository_key_fingerprints",
            "https://github.com/NVIDIA/cuda-repo-management",
        )
    ]


def key_given(key: str) -> list[Finding]:
    """A repository's key as it is given, before it is read: its text, an https URL, or a path."""
    if not key.strip():
        remedy = "Set it to the key's text, to its https URL, or to the path of its file on the controller"
        return [Finding("apt_key.none", "error", "cuda_repository_key is not set", remedy)]
    if is_url(key) and not key.startswith("https://"):
        remedy = "Use an https URL, or the path of the key's file on the controller"
        return [Finding("apt_key.url", "error", f"cuda_repository_key is the URL {bare(key)}", remedy)]
    return []


def bare(text: str) -> str:
    """A text without user and password of the URLs in it, which no output may repeat."""
    return re.sub(r"(?<=://)[^/\s@]+@", "***@", text)


def is_url(key: str) -> bool:
    """Whether a key is given by its URL."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://\S*$", key.strip()) is not None


def judge_url(url: str) -> list[Finding]:
    """Whether a repository can be reached so, and safely."""
    return [*url_form(url), *url_password(url)]


def url_form(url: str) -> list[Finding]:
    """There is no default: a distribution has its own repository, and many sites a mirror."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    # apt reads more of the line, and of the stanza, than the URL.
    if good and not re.search(r"[\s\"#\[\]]", url):
        return []
    seen = f"cuda_repository_url is {bare(url)!r}" if url else "cuda_repository_url is not set"
    remedy = "Set it to the http or https URL of the repository for the node's distribution, or of its mirror"
    return [Finding("apt.url", "error", seen, remedy, GUIDE)]


def url_password(url: str) -> list[Finding]:
    """Everyone on the node may read the files of sources."""
    try:
        if "@" not in urlsplit(url).netloc:
            return []
    except ValueError:
        return []
    remedy = "Write user and password to a file in /etc/apt/auth.conf.d that only root may read"
    seen = "cuda_repository_url holds a user or password"
    return [Finding("apt.url_password", "error", seen, remedy, "apt_auth.conf(5)")]


@dataclass(frozen=True)
class Message:
    """A fault that ``apt-get update`` tells in the C locale, and what it means here."""

    pattern: str
    id: str
    remedy: str
    source: str = ""


_MESSAGES = (
    Message(
        r"NO_PUBKEY \w+|Missing key \w+",
        "apt.key_missing",
        "Another key signs the repository: set cuda_repository_key to it, and cuda_repository_key_fingerprints to its "
        "fingerprint, as its owner publishes them",
        "https://github.com/NVIDIA/cuda-repo-management/issues/4",
    ),
    Message(
        r"SHA1 is not considered secure[^\n]*",
        "apt.key_sha1",
        "This apt refuses the key: use the repository made for this distribution, which is signed by a newer key",
        "https://github.com/NVIDIA/cuda-repo-management/issues/34",
    ),
    Message(
        r"(?:EXPKEYSIG|KEYEXPIRED) \w+|The (?:primary )?key is not live[^\n]*",
        "apt.key_expired",
        "Give the key again, as its owner publishes it now: set cuda_repository_key to it; where that is a URL, which "
        f"is asked for only once, remove {KEYRING}, and run again",
    ),
    Message(
        r"(?:BADSIG|ERRSIG) \w+|Hash Sum mismatch|Clearsigned file isn't valid[^\n]*|Message has been manipulated"
        r"|Splitting up \S+ into data and signature failed",
        "apt.signature_wrong",
        "Something between repository and node changes files: compare the mirror or proxy with the original",
    ),
    Message(
        r"Conflicting values set for option Signed-By[^\n]*",
        "apt.second_owner",
        "Another file names this repository with another key: remove it from the file",
        _SOURCES_LIST,
    ),
    Message(
        r"Release file for \S+ is (?:expired|not valid yet)[^\n]*",
        "apt.release_date",
        "Set the node's clock right (timedatectl); where it is right, have the mirror brought up to date",
    ),
    Message(r"is not signed", "apt.unsigned", "Use a repository that is signed, or sign the mirror"),
    Message(
        r"(?:Could not resolve|Temporary failure resolving|Could not connect|Unable to connect|Connection failed|"
        r"Connection timed out|Network is unreachable)[^\n]*",
        "apt.unreachable",
        "Let the node reach the repository, or set cuda_repository_proxy or cuda_repository_url to a mirror",
    ),
    Message(
        r"(?:404|403|401|407) +[A-Z][^\n]*",
        "apt.not_there",
        "Check cuda_repository_url and cuda_repository_suite: the repository for the node's distribution",
    ),
)


def update_failed(output: str) -> list[Finding]:
    """What ``apt-get update`` says is wrong, by its own words (``LC_ALL=C``); the first that fits tells the cause."""
    for message in _MESSAGES:
        if match := re.search(message.pattern, output):
            return [Finding(message.id, "error", f"apt: {match[0].strip()}", message.remedy, message.source)]
    lines = [line for line in output.splitlines() if re.match(r"(?:E|W|Err):", line)]
    if not lines:
        return []
    return [Finding("apt.update", "error", f"apt: {' '.join(lines)[:300]}", "Mend what apt complains about")]


@dataclass(frozen=True)
class Change:
    """One step of a simulated installation. ``old`` and ``new``: versions; empty where there is none.

    ``action``  ``Inst`` unpacks (installs or upgrades), ``Remv`` removes, ``Purg`` removes with configuration
    """

    action: Literal["Inst", "Remv", "Purg"]
    package: str
    old: str
    new: str
    line: str


def changes(output: str) -> list[Change]:
    """The steps that ``apt-get --simulate`` prints; ``Conf`` repeats what ``Inst`` says, and is left out."""
    found = []
    pattern = re.compile(r"^(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+)[^)]*\))?")
    for line in output.splitlines():
        if match := pattern.match(line):
            action, package, old, new = match.groups(default="")
            found.append(Change(action, package.partition(":")[0], old, new, line.strip()))  # type: ignore[arg-type]
    return found


_DRIVER = re.compile(
    r"^(?:nvidia-(?!cuda-(?:toolkit|dev|doc|gdb|mps|samples)|container|fabricmanager-dev|nsight|visual|profiler|modprobe$)"
    r"|libnvidia-(?!container|ml-dev|nscq)|libcuda1|libcudadebugger1|libnvcuvid1|libnvoptix1|cuda-drivers|cuda-compat"
    r"|xserver-xorg-video-nvidia|firmware-nvidia|linux-(?:modules|objects|signatures)-nvidia|[a-z-]+-nvidia-glx)"
)


def is_driver(package: str) -> bool:
    """Whether a package is part of the NVIDIA driver: kernel modules, their libraries and what pulls them in."""
    return _DRIVER.match(package) is not None


_PULLS = re.compile(
    r"^(?:cuda|cuda-(?P<dash>\d+-\d+)|cuda-(?P<major>\d+)|cuda-runtime-(?P<runtime>\d+-\d+)|cuda-demo-suite-\d+-\d+"
    r"|cuda-drivers.*|cuda-compat-.*|nvidia-cuda-toolkit)$"
)

_PROPRIETARY = re.compile(
    r"^(?:cuda-drivers(?!.*open).*|nvidia-driver-\d+(?:-server)?|nvidia-(?:dkms|headless|headless-no-dkms|kernel-source)-\d+(?:-server)?"
    r"|nvidia-(?:dkms|kernel-dkms|kernel-source|legacy-.*|tesla-.*)|nvidia-driver|nvidia-headless"
    r"|linux-(?:modules|objects)-nvidia-\d+(?!.*-open).*)$"
)


_PROPRIETARY_MODULES = re.compile(
    r"^(?:nvidia-(?:kernel-)?dkms(?:-\d+(?:-server)?)?|nvidia-(?:legacy|tesla)-(?:\d+\w*-)?kernel-dkms"
    r"|linux-(?:modules|objects)-nvidia-\d+(?!.*-open).*)$"
)


def has_proprietary_modules(package: str) -> bool:
    """Whether a package holds the proprietary kernel modules themselves, or their source for DKMS."""
    return _PROPRIETARY_MODULES.match(package) is not None


@dataclass(frozen=True)
class Installation:
    """What is asked of apt, and what it would do.

    ``packages``  names, perhaps with ``=version``
    ``branch``    the driver branch that is meant (``580``); None where no driver is
    ``changes``   of the simulation; none before it
    """

    packages: tuple[str, ...]
    branch: int | None = None
    changes: tuple[Change, ...] = ()

    @property
    def names(self) -> list[str]:
        return [re.split(r"[=/:]", package, maxsplit=1)[0] for package in self.packages]


def judge(asked: Installation) -> list[Finding]:
    """Every finding on an installation: on its names, which need no node, and on its simulation."""
    return [
        *package_name(asked),
        *pulls_driver(asked),
        *old_branch(asked),
        *proprietary(asked),
        *other_branch(asked),
        *changes_driver(asked),
        *removes(asked),
        *brings_proprietary(asked),
        *leaves_branch(asked),
    ]


def package_name(asked: Installation) -> list[Finding]:
    """What is no name could be an option of apt-get's, or a removal (``name-``)."""
    wrong = [
        name for name in asked.packages if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](?:=[\w.+:~-]+)?", name)
    ]
    source = "https://www.debian.org/doc/debian-policy/ch-controlfields.html#source"
    return [
        Finding("apt.package_name", "error", f"{name!r} is no name of a package", "Give name or name=version", source)
        for name in wrong
    ]


def pulls_driver(asked: Installation) -> list[Finding]:
    """NVIDIA's meta packages depend on a driver, which replaces the one that the node has."""
    found = []
    for name in asked.names:
        match = _PULLS.match(name)
        driver = asked.branch is None and (is_driver(name) or name.startswith("nvidia-open"))
        if match is None and not driver:
            continue
        if asked.branch is not None and name.startswith("cuda-drivers"):
            continue  # told by ``proprietary``
        version = (match["dash"] or match["runtime"] or "") if match else ""
        if driver or name.startswith(("cuda-drivers", "cuda-compat")):
            remedy = "Leave it out: role nvidia_driver installs a driver, where nvidia_driver_manage is true"
        else:
            remedy = f"Use cuda-toolkit-{version or '13-0'} instead"
        seen = f"{name} installs or replaces the NVIDIA driver"
        found.append(Finding("apt.pulls_driver", "error", seen, remedy, _META))
    return found


def old_branch(asked: Installation) -> list[Finding]:
    """CUDA 13 needs it."""
    if asked.branch is None or asked.branch >= OLDEST_BRANCH:
        return []
    remedy = f"Set nvidia_driver_branch to {OLDEST_BRANCH} or newer"
    source = "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/"
    return [Finding("apt.branch_old", "error", f"Driver branch {asked.branch} is too old for CUDA 13", remedy, source)]


def proprietary(asked: Installation) -> list[Finding]:
    """Blackwell works with the open kernel modules alone."""
    return [
        Finding(
            "apt.proprietary",
            "error",
            f"{name} brings the proprietary kernel modules",
            "Use nvidia-open, or nvidia-kernel-open-dkms with nvidia-driver-cuda: Blackwell needs open modules",
            OPEN_ONLY,
        )
        for name in asked.names
        if asked.branch is not None and _PROPRIETARY.match(name)
    ]


def other_branch(asked: Installation) -> list[Finding]:
    """A package of another branch would fight the pin."""
    found = []
    for name in asked.names:
        match = re.search(r"-(\d{3})(?:-|$)", name)
        if asked.branch is not None and is_driver(name) and match and int(match[1]) != asked.branch:
            seen = f"{name} is of branch {match[1]}, nvidia_driver_branch is {asked.branch}"
            found.append(Finding("apt.branch_other", "error", seen, "Set both to one branch", GUIDE))
    return found


def _lines(steps: Iterable[Change]) -> str:
    return "; ".join(step.line for step in steps)


def changes_driver(asked: Installation) -> list[Finding]:
    """Who asks for a toolkit does not ask for another driver, and would notice at the next reboot."""
    steps = [step for step in asked.changes if is_driver(step.package)]
    if asked.branch is not None or not steps:
        return []
    seen = f"Installing {' '.join(asked.packages)} would change the NVIDIA driver: {_lines(steps)}"
    remedy = "Choose packages that need no driver (cuda-toolkit-13-0), or hold the driver (apt-mark hold)"
    return [Finding("apt.changes_driver", "error", seen, remedy, "https://github.com/canonical/checkbox/issues/749")]


def removes(asked: Installation) -> list[Finding]:
    """Nothing that works is removed on the way; a driver takes the place of another one."""
    steps = [
        step
        for step in asked.changes
        if step.action != "Inst" and (asked.branch is None or not is_driver(step.package))
    ]
    if asked.branch is None:
        steps = [step for step in steps if not is_driver(step.package)]  # told by ``changes_driver``
    if not steps:
        return []
    seen = f"Installing {' '.join(asked.packages)} would remove packages: {_lines(steps)}"
    remedy = "Find out with apt-get --simulate install what stands against it, and remove that yourself if it may go"
    return [Finding("apt.removes", "error", seen, remedy)]


def brings_proprietary(asked: Installation) -> list[Finding]:
    """A dependency may bring what was not named."""
    steps = [step for step in asked.changes if step.action == "Inst" and _PROPRIETARY.match(step.package)]
    # On Debian, nvidia-driver is the user's side of both flavours.
    steps = [step for step in steps if step.package not in ("nvidia-driver",) and step.package not in asked.names]
    if asked.branch is None or not steps:
        return []
    seen = f"Installing {' '.join(asked.packages)} would bring proprietary kernel modules: {_lines(steps)}"
    remedy = "Use nvidia-open, or nvidia-kernel-open-dkms with nvidia-driver-cuda"
    return [Finding("apt.brings_proprietary", "error", seen, remedy, OPEN_ONLY)]


def leaves_branch(asked: Installation) -> list[Finding]:
    """The pin is of no use where another one overrules it."""
    steps = [
        step
        for step in asked.changes
        if step.action == "Inst"
        and re.match(r"nvidia-(?:open$|kernel|dkms|driver-cuda)|libcuda1$|libnvidia-compute", step.package)
        and asked.branch is not None
        and not re.match(rf"(?:\d+:)?{asked.branch}\.", step.new)
    ]
    if not steps:
        return []
    seen = f"apt would install another driver branch than {asked.branch}: {_lines(steps)}"
    remedy = (
        "See in apt-cache policy which preferences overrule the pin, or set nvidia_driver_branch to one that is there"
    )
    return [Finding("apt.branch_left", "error", seen, remedy, _PREFERENCES)]


RULES: tuple[Callable[..., list[Finding]], ...] = (
    unreadable_key,
    secret_key,
    fingerprint_form,
    other_key,
    key_given,
    url_form,
    url_password,
    update_failed,
    package_name,
    pulls_driver,
    old_branch,
    proprietary,
    other_branch,
    changes_driver,
    removes,
    brings_proprietary,
    leaves_branch,
)
