# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sources of apt, the keys that sign them, and what installations would do to the driver."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import apt
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

HOST = "mirror.example.com"
PATH = "compute/cuda/repos/ubuntu2404/x86_64"
REPOSITORY = apt.Repository(f"https://{HOST}/{PATH}/")


def ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


# Sources: the repository, however it is written


@pytest.mark.parametrize(
    ("uri", "suite"),
    [
        (f"https://{HOST}/{PATH}/", "/"),
        (f"https://{HOST}/{PATH}", "/"),
        (f"http://{HOST}/{PATH}/", "/"),
        (f"https://{HOST}/{PATH}", "./"),
        (f"https://{HOST.upper()}:443/{PATH}/", "/"),
        (f"http://{HOST}:80/{PATH}//", "/"),
        (f"https://user:word@{HOST}/{PATH}/", "/"),
        (f"https://{HOST}/compute/cuda/repos/", "ubuntu2404/x86_64/"),
        (f"https://{HOST}/{PATH.replace('_', '%5f')}", "/"),
    ],
)
def test_a_repository_is_the_same_however_it_is_written(uri: str, suite: str) -> None:
    assert apt.Place.of(uri, suite) == REPOSITORY.place


@pytest.mark.parametrize(
    ("uri", "suite"),
    [
        (f"https://other.example.com/{PATH}/", "/"),
        (f"https://{HOST}:8443/{PATH}/", "/"),
        (f"https://{HOST}/{PATH.replace('2404', '2204')}/", "/"),
        (f"https://{HOST}/{PATH}/", "noble"),
        ("https://[broken/", "/"),
    ],
)
def test_another_repository_is_another(uri: str, suite: str) -> None:
    assert apt.Place.of(uri, suite) != REPOSITORY.place


def test_a_line_is_read_with_its_options() -> None:
    text = f"""\
# deb https://{HOST}/commented /
deb [ arch=amd64,arm64 signed-by=/usr/share/keyrings/cuda.gpg ] https://{HOST}/{PATH}/ / # a note
deb-src http://{HOST}/debian bookworm main contrib
rpm https://{HOST}/nothing /
"""
    first, second = apt.entries("x.list", text)
    assert (first.first, first.types, first.uris, first.suites) == (1, ("deb",), (f"https://{HOST}/{PATH}/",), ("/",))
    assert first.options == {"architectures": "amd64 arm64", "signed-by": "/usr/share/keyrings/cuda.gpg"}
    assert (second.types, second.suites, second.components) == (("deb-src",), ("bookworm",), ("main", "contrib"))


STANZAS = f"""\
# Two of them.
Types: deb deb-src
URIs: https://{HOST}/{PATH}/
  https://other.example.com/cuda/
suites: /
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQENBF
# a comment in between
Architectures: amd64

Enabled: no
Types: deb
URIs: https://{HOST}/debian
Suites: bookworm bookworm-updates
Components: main
"""


def test_stanzas_are_read() -> None:
    first, second = apt.entries("x.sources", STANZAS)
    assert (first.first, first.last, first.enabled) == (0, 10, True)
    assert first.uris == (f"https://{HOST}/{PATH}/", "https://other.example.com/cuda/")
    assert first.options["architectures"] == "amd64"
    assert "mQENBF" in first.options["signed-by"]
    assert (second.enabled, len(second.places)) == (False, 2)


def test_ours_reads_back() -> None:
    repository = apt.Repository("https://h.example/x", "noble", ("main", "extra"), ("amd64",))
    (entry,) = apt.entries(apt.SOURCE, repository.source())
    assert [place for _, _, place in entry.places] == [repository.place]
    assert entry.components == ("main", "extra")
    assert entry.options == {"architectures": "amd64", "signed-by": apt.KEYRING}


def test_a_file_with_nothing_else_can_go() -> None:
    line = f"deb http://{HOST}/{PATH} /"
    assert apt.clear("x.list", f"# by hand\n{line}\n", REPOSITORY) == apt.Cleared(None, (line,))


def test_other_lines_stay_as_they_are() -> None:
    text = f"deb http://{HOST}/{PATH} /\ndeb https://other.example.com/ ./\n"
    cleared = apt.clear("x.list", text, REPOSITORY)
    assert cleared.text == f"# deb http://{HOST}/{PATH} /\ndeb https://other.example.com/ ./\n"
    again = apt.clear("x.list", cleared.text, REPOSITORY)
    assert again == apt.Cleared(cleared.text, ())


def test_what_is_not_enabled_is_left_alone() -> None:
    text = f"Enabled: no\nTypes: deb\nURIs: https://{HOST}/{PATH}/\nSuites: /\n"
    assert apt.clear("x.sources", text, REPOSITORY) == apt.Cleared(text, ())


def test_a_file_of_another_host_is_left_alone() -> None:
    text = f"deb https://other.example.com/{PATH}/ /"
    assert apt.clear("x.list", text, REPOSITORY) == apt.Cleared(text, ())


def test_a_stanza_keeps_its_other_uris() -> None:
    cleared = apt.clear("x.sources", STANZAS, REPOSITORY)
    assert cleared.text is not None
    (left,) = [entry for entry in apt.entries("x.sources", cleared.text) if entry.enabled]
    assert left.uris == ("https://other.example.com/cuda/",)
    assert left.suites == ("/",)
    assert left.options["architectures"] == "amd64"
    assert "mQENBF" in left.options["signed-by"]


def test_a_stanza_keeps_the_other_suites_of_its_uri() -> None:
    repository = apt.Repository(f"https://{HOST}/debian", "bookworm")
    text = (
        f"Types: deb\nURIs: https://{HOST}/debian https://other.example.com/d\nSuites: bookworm sid\nComponents: main\n"
    )
    left = apt.entries("x.sources", apt.clear("x.sources", text, repository).text or "")
    assert [(entry.uris, entry.suites) for entry in left] == [
        (("https://other.example.com/d",), ("bookworm", "sid")),
        ((f"https://{HOST}/debian",), ("sid",)),
    ]


def test_a_proxy_is_for_the_repository_alone() -> None:
    assert f'Acquire::https::Proxy::{HOST} "http://p:1";' in REPOSITORY.proxy("http://p:1")
    assert REPOSITORY.proxy("") == ""


PIN = "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"


@pytest.mark.parametrize(
    ("name", "text", "about"),
    [
        ("cuda-repository-pin-600", "Package: nsight-compute\nPin: origin *ubuntu.com*\nPin-Priority: -1\n", True),
        ("cuda", PIN, True),
        ("cuda.pref", f"# why\n\n{PIN}", True),
        ("cuda", PIN.replace("l=NVIDIA CUDA", "o=NVIDIA,l=NVIDIA CUDA"), True),
        ("mine", f"{PIN}\nPackage: *\nPin: release a=sid\nPin-Priority: 1\n", False),
        ("mine", PIN.replace("Package: *", "Package: nvidia-*"), False),
        ("mine", PIN.replace("NVIDIA CUDA", "Debian"), False),
        ("mine", "", False),
    ],
)
def test_preferences_about_the_repository_alone_are_known(name: str, text: str, about: bool) -> None:
    assert apt.pins_repository(name, text) is about


# Keys


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of GnuPG with two keys."""
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    for name, kind in (("one", "rsa2048"), ("two", "ed25519")):
        ask(home, "--passphrase", "", "--quick-gen-key", f"{name}@example.com", kind, "sign", "never")
    yield home
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)


def ask(home: Path, *arguments: str) -> bytes:
    argv = ["gpg", "--homedir", str(home), "--batch", "--quiet", *arguments]
    return subprocess.run(argv, check=True, capture_output=True).stdout


def told(home: Path, name: str) -> str:
    lines = ask(home, "--with-colons", "--fingerprint", f"{name}@example.com").decode().splitlines()
    return next(line.split(":")[9] for line in lines if line.startswith("fpr"))


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("armour", [(), ("--armor",)])
def test_a_fingerprint_is_what_gpg_says(gpg: Path, name: str, armour: tuple[str, ...]) -> None:
    material = ask(gpg, *armour, "--export", f"{name}@example.com")
    assert apt.keys(apt.binary(material)) == [apt.Key(told(gpg, name))]


def test_windows_line_ends_and_headers_do_not_matter(gpg: Path) -> None:
    text = ask(gpg, "--armor", "--comment", "from a site", "--export", "one@example.com")
    assert apt.binary(text.replace(b"\n", b"\r\n")) == ask(gpg, "--export", "one@example.com")


def test_every_key_of_a_file_is_found(gpg: Path) -> None:
    both = ask(gpg, "--armor", "--export", "one@example.com") + ask(gpg, "--armor", "--export", "two@example.com")
    assert [key.fingerprint for key in apt.keys(apt.binary(both))] == [told(gpg, "one"), told(gpg, "two")]
    (finding,) = apt.judge_key(apt.KeyCheck.of("k", apt.binary(both), [told(gpg, "one")]))
    assert (finding.id, told(gpg, "two") in finding.seen) == ("apt_key.other", True)


def test_secret_keys_are_refused(gpg: Path) -> None:
    secret = apt.binary(ask(gpg, "--armor", "--export-secret-keys", "one@example.com"))
    assert ids(apt.judge_key(apt.KeyCheck.of("k", secret, [told(gpg, "one")]))) == ["apt_key.secret"]


def test_an_accepted_key_has_no_findings(gpg: Path) -> None:
    spaced = " ".join(told(gpg, "one")[start : start + 4] for start in range(0, 40, 4)).lower()
    assert apt.judge_key(apt.KeyCheck.of("k", ask(gpg, "--export", "one@example.com"), [spaced])) == []


def test_damaged_armour_is_told(gpg: Path) -> None:
    text = ask(gpg, "--armor", "--export", "one@example.com")
    lines = text.splitlines()
    lines[3] = lines[3][::-1]
    for damaged, why in (
        (b"\n".join(lines), "checksum"),
        (text[:-80], "no end"),
        (text.replace(lines[4], b"\xff\xfe"), "damaged"),
    ):
        with pytest.raises(ValueError, match=why):
            apt.binary(damaged)


def test_a_checksum_may_be_missing(gpg: Path) -> None:
    text = ask(gpg, "--armor", "--export", "one@example.com")
    lines = [line for line in text.splitlines() if not line.startswith(b"=")]
    assert apt.binary(b"\n".join(lines)) == apt.binary(text)


V6 = b"\x06" + b"\x00" * 4 + b"\x1b" + (32).to_bytes(4, "big") + b"\x01" * 32


@pytest.mark.parametrize(
    "header",
    [
        bytes([0xC6, len(V6)]),
        bytes([0x98, len(V6)]),
        bytes([0x99]) + len(V6).to_bytes(2, "big"),
        bytes([0x9A]) + len(V6).to_bytes(4, "big"),
        bytes([0xC6, 255]) + len(V6).to_bytes(4, "big"),
    ],
)
def test_every_form_of_a_packet_is_read(header: bytes) -> None:
    (key,) = apt.keys(header + V6)
    assert len(key.fingerprint) == 64


def test_a_length_of_two_octets_is_read() -> None:
    body = b"\x04" + b"\x00" * 299
    header = bytes([0xC6, ((300 - 192) >> 8) + 192, (300 - 192) & 255])
    assert apt.keys(header + body) == apt.keys(b"\x99" + (300).to_bytes(2, "big") + body)


@pytest.mark.parametrize(
    ("packets", "why"),
    [
        (b"<html>not found</html>", "begins no OpenPGP packet"),
        (b"\x99\x01\x00\x04", "cut short"),
        (b"\xc6", "cut short"),
        (b"\x98\x01\x03", "version 3"),
        (b"", "it holds none"),
    ],
)
def test_what_is_no_key_is_told(packets: bytes, why: str) -> None:
    (finding,) = apt.judge_key(apt.KeyCheck.of("k", packets, ["A" * 40]))
    assert finding.id == "apt_key.unreadable"
    assert why in finding.seen


@pytest.mark.parametrize("accepted", [[], ["3BF863CC"], ["x" * 40]])
def test_a_fingerprint_form_that_can_be_forged_is_refused(accepted: list[str]) -> None:
    (finding,) = apt.fingerprint_form(apt.KeyCheck("k", tuple(accepted)))
    assert finding.id == "apt_key.fingerprint"


# URLs


def test_a_url_form_is_judged() -> None:
    assert apt.judge_url("https://h.example/x/") == []
    for wrong in (
        "",
        "ftp://h/x",
        "h.example/x",
        "https://",
        "https://h/x y",
        "https://h/\nTrusted: yes",
        "http://[h/x",
    ):
        assert ids(apt.judge_url(wrong)) == ["apt.url"], wrong


def test_a_url_password_is_refused() -> None:
    assert ids(apt.judge_url("https://me:hunter2@h.example/x/")) == ["apt.url_password"]
    assert "hunter2" not in str(apt.judge_url("https://me:hunter2@h.example/x/")[0])
    assert "hunter2" not in str(apt.judge_url("https://me:hunter2@h.example/x y")[0])
    assert "hunter2" not in str(apt.key_given("http://me:hunter2@h.example/key.gpg")[0])


# What apt-get update says


def test_an_expired_key_that_comes_from_a_url_is_fetched_again_by_its_remedy() -> None:
    (finding,) = apt.update_failed("signatures were invalid: EXPKEYSIG A4B469963BF863CC cudatools")
    assert f"remove {apt.KEYRING}" in finding.remedy


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            "W: GPG error: https://h InRelease: The following signatures couldn't be verified because the public key "
            "is not available: NO_PUBKEY A4B469963BF863CC\nE: The repository 'https://h InRelease' is not signed.",
            "apt.key_missing",
        ),
        (
            "Missing key EB693B3035CD5710E231E123A4B469963BF863CC, which is needed to verify signature.",
            "apt.key_missing",
        ),
        ("because: SHA1 is not considered secure since 2026-02-01T00:00:00Z\nE: is not signed.", "apt.key_sha1"),
        ("signatures were invalid: EXPKEYSIG A4B469963BF863CC cudatools", "apt.key_expired"),
        # As Debian 13 verifies: a key that has expired since, a changed file, one that was cut, a page in its place.
        (
            "Err:1 file:/srv/r  InRelease\n  Sub-process /usr/bin/sqv returned an error code (1), error message is: "
            "Signing key on 36E2009A16DA7314D0BE62CF9A6AD9ADB8054C9E is bad:            The primary key is not live   "
            "because: Expired on 2025-01-31T00:00:00Z\nE: The repository 'file:/srv/r  InRelease' is not signed.",
            "apt.key_expired",
        ),
        (
            "error message is: Verifying signature:            Message has been manipulated\nE: is not signed.",
            "apt.signature_wrong",
        ),
        (
            "  Splitting up /var/lib/apt/lists/partial/_r_InRelease into data and signature failed\nE: is not signed.",
            "apt.signature_wrong",
        ),
        (
            "E: Failed to fetch file:/srv/r/InRelease  Clearsigned file isn't valid, got 'NOSPLIT' (does the network "
            "require authentication?)\nE: The repository 'file:/srv/r  InRelease' is not signed.",
            "apt.signature_wrong",
        ),
        ("signatures were invalid: BADSIG A4B469963BF863CC cudatools", "apt.signature_wrong"),
        ("E: Conflicting values set for option Signed-By regarding source https://h/ /: a != b", "apt.second_owner"),
        ("E: The repository 'http://h  InRelease' is not signed.", "apt.unsigned"),
        ("E: Release file for http://h/InRelease is not valid yet (invalid for another 6h 35min)", "apt.release_date"),
        ("E: Release file for http://h/InRelease is expired (invalid since 7d 3h).", "apt.release_date"),
        ("Err:1 http://h  InRelease\n  Could not resolve 'h'", "apt.unreachable"),
        ("Err:1 http://h  InRelease\n  404  Not Found [IP: 10.0.0.1 80]", "apt.not_there"),
        ("E: Sub-process returned an error code", "apt.update"),
    ],
)
def test_update_failed_names_the_cause(said: str, wanted: str) -> None:
    assert ids(apt.update_failed(said)) == [wanted]


def test_a_good_update_has_no_findings() -> None:
    assert apt.update_failed("Hit:1 http://h  InRelease\nReading package lists...\n") == []


# Simulations

SIMULATED = """\
Reading package lists...
The following packages will be REMOVED:
  nvidia-driver-580-open
Remv nvidia-driver-580-open [580.95.05-0ubuntu1] [xserver-xorg:amd64 ]
Inst libcuda1:amd64 [580.95.05-1] (590.44.01-1 NVIDIA CUDA:mirror.example.com [amd64]) []
Inst cuda-toolkit-13-0 (13.0.2-1 NVIDIA CUDA:mirror.example.com [amd64])
Conf cuda-toolkit-13-0 (13.0.2-1 NVIDIA CUDA:mirror.example.com [amd64])
Purg old-thing [1.0]
"""


def test_steps_are_read() -> None:
    found = [(step.action, step.package, step.old, step.new) for step in apt.changes(SIMULATED)]
    assert found == [
        ("Remv", "nvidia-driver-580-open", "580.95.05-0ubuntu1", ""),
        ("Inst", "libcuda1", "580.95.05-1", "590.44.01-1"),
        ("Inst", "cuda-toolkit-13-0", "", "13.0.2-1"),
        ("Purg", "old-thing", "1.0", ""),
    ]


def test_a_simulation_that_was_cut_short_gives_what_is_whole() -> None:
    cut = "Inst cuda-toolkit-13-0 (13.0.2-1 NVIDIA CUDA:mirror.example.com [amd64])\nInst li"
    assert [step.package for step in apt.changes(cut)] == ["cuda-toolkit-13-0", "li"]
    assert apt.changes("") == []


def asked(*packages: str, branch: int | None = None, simulated: str = "") -> list[Finding]:
    return apt.judge(apt.Installation(packages, branch, tuple(apt.changes(simulated))))


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("cuda", "cuda-toolkit-13-0"),
        ("cuda-13-0", "cuda-toolkit-13-0"),
        ("cuda-13", "cuda-toolkit-13-0"),
        ("cuda-12-9=12.9.1-1", "cuda-toolkit-12-9"),
        ("cuda-runtime-13-1", "cuda-toolkit-13-1"),
        ("nvidia-cuda-toolkit", "cuda-toolkit-13-0"),
        ("cuda-drivers", "nvidia_driver_manage"),
        ("cuda-drivers-580", "nvidia_driver_manage"),
        ("cuda-compat-13-0", "nvidia_driver_manage"),
        ("nvidia-driver-580-open", "nvidia_driver_manage"),
        ("nvidia-open-580", "nvidia_driver_manage"),
        ("nvidia-open", "nvidia_driver_manage"),
        ("libnvidia-compute-580:amd64", "nvidia_driver_manage"),
        ("libcuda1", "nvidia_driver_manage"),
    ],
)
def test_pulls_driver_names_the_replacement(package: str, use: str) -> None:
    (finding,) = apt.pulls_driver(apt.Installation((package,)))
    assert finding.id == "apt.pulls_driver"
    assert finding.seen.startswith(apt.Installation((package,)).names[0])
    assert use in finding.remedy


@pytest.mark.parametrize(
    "package",
    [
        "cuda-toolkit-13-0",
        "cuda-toolkit-13-0=13.0.2-1",
        "cuda-nvcc-13-0",
        "libnccl2",
        "libcublas-13-0",
        "nvidia-container-toolkit",
        "libnvidia-container1",
        "libnvjitlink-13-0",
        "nvidia-cuda-dev",
    ],
)
def test_what_needs_no_driver_passes(package: str) -> None:
    assert asked(package) == []


@pytest.mark.parametrize(
    "package", ["--force-yes", "nvidia-open-", "a b", "nvidia open", "cuda;id", "-o=x", "Nvidia", ""]
)
def test_a_package_name_is_a_name(package: str) -> None:
    assert "apt.package_name" in ids(asked(package, branch=580))


def test_an_old_branch_is_refused() -> None:
    assert ids(asked("nvidia-open", branch=570)) == ["apt.branch_old"]
    assert asked("nvidia-open", branch=580) == asked("nvidia-open", branch=595) == []


@pytest.mark.parametrize(
    "package",
    [
        "cuda-drivers",
        "cuda-drivers-580",
        "nvidia-driver-580",
        "nvidia-driver-580-server",
        "nvidia-dkms-580",
        "nvidia-dkms",
        "nvidia-kernel-dkms",
        "nvidia-driver",
        "nvidia-headless-580-server",
        "linux-modules-nvidia-580-generic",
        "linux-modules-nvidia-580-server-6.8.0-90-generic",
    ],
)
def test_proprietary_modules_are_refused(package: str) -> None:
    assert ids(asked(package, branch=580)) == ["apt.proprietary"]


@pytest.mark.parametrize(
    "package",
    [
        "nvidia-open",
        "nvidia-open-580",
        "nvidia-driver-580-open",
        "nvidia-driver-580-server-open",
        "nvidia-dkms-580-open",
        "nvidia-kernel-open-dkms",
        "nvidia-driver-cuda",
        "nvidia-headless-580-server-open",
        "linux-modules-nvidia-580-open-generic",
        "linux-modules-nvidia-580-server-open-generic",
        "nvidia-persistenced",
        "nvidia-utils-580-server",
    ],
)
def test_open_modules_pass(package: str) -> None:
    assert asked(package, branch=580) == []


def test_other_branch_is_refused() -> None:
    assert ids(asked("nvidia-driver-570-open", branch=580)) == ["apt.branch_other"]


def test_changes_driver_stops_a_toolkit() -> None:
    (finding,) = asked("cuda-toolkit-13-0", simulated=SIMULATED.replace("Purg old-thing [1.0]\n", ""))
    assert finding.id == "apt.changes_driver"
    assert "Remv nvidia-driver-580-open [580.95.05-0ubuntu1]" in finding.seen
    assert "Inst libcuda1:amd64 [580.95.05-1]" in finding.seen
    assert "Conf" not in finding.seen


def test_removes_stops_anything() -> None:
    assert ids(asked("cuda-toolkit-13-0", simulated="Purg old-thing [1.0]")) == ["apt.removes"]
    assert ids(asked("nvidia-open", branch=580, simulated="Remv linux-image-amd64 [6.1]")) == ["apt.removes"]
    # One driver takes the place of another.
    assert asked("nvidia-open", branch=580, simulated="Remv nvidia-dkms-580 [580.95.05-1]") == []


def test_brings_proprietary_stops_a_driver() -> None:
    steps = "Inst nvidia-open (580.95.05-1 x [all])\nInst nvidia-dkms-580 (580.95.05-1 x [all])"
    (finding,) = asked("nvidia-open", branch=580, simulated=steps)
    assert (finding.id, "nvidia-dkms-580 (580.95.05-1" in finding.seen) == ("apt.brings_proprietary", True)
    # On Debian this is the user's side of both flavours.
    assert asked("nvidia-open", branch=580, simulated="Inst nvidia-driver (580.95.05-1 x [all])") == []


def test_leaves_branch_stops_a_driver() -> None:
    steps = "Inst libcuda1 (590.44.01-1 x [amd64])\nInst nvidia-modprobe (590.44.01-1 x [amd64])"
    assert ids(asked("nvidia-driver-cuda", branch=580, simulated=steps)) == ["apt.branch_left"]
    assert asked("nvidia-driver-cuda", branch=580, simulated=steps.replace("590.44.01", "1:580.95.05")) == []


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("", ["apt_key.none"]),
        ("  ", ["apt_key.none"]),
        ("http://mirror.example/key.gpg", ["apt_key.url"]),
        ("ftp://mirror.example/key.gpg", ["apt_key.url"]),
        ("file:///srv/key.gpg", ["apt_key.url"]),
        ("https://mirror.example/key.gpg", []),
        ("keys/cuda.gpg", []),
        ("base64:mQINBA==", []),
        ("-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: http://example.com\n", []),
    ],
)
def test_key_given_is_text_or_path_or_https(key: str, found: list[str]) -> None:
    assert ids(apt.key_given(key)) == found


def test_key_file_of_a_page_is_no_key() -> None:
    html = base64.b64encode(b"<html>")
    assert apt.KeyCheck.of("k", html, ["A" * 40]).problem
