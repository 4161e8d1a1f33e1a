# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Locks, manifests, and what uv is asked to do: by a runner that records, and once by uv itself."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import wheels

A, B, C = "a" * 64, "b" * 64, "c" * 64
LOCK = f"""\
Flash.Infer_python==0.6.11.post1 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
torch==2.11.0+cu130 \\
    --hash=sha256:{C}
"""


class Recorder:
    """Runs nothing: keeps what it is given, and answers as told."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []
        self.environment = None

    def __call__(self, argv, environment):
        self.calls.append(argv)
        self.environment = dict(environment)
        return self.answers.pop(0) if self.answers else (0, "", "")


@pytest.fixture
def strict_umask():
    """The umask of root's session on a hardened node."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_pins_are_normalised_names_and_exact_versions():
    assert wheels.pins(LOCK) == {"flash-infer-python": "0.6.11.post1", "torch": "2.11.0+cu130"}


@pytest.mark.parametrize(
    "same",
    [
        "\n".join(reversed(LOCK.replace(" \\\n   ", "").splitlines())),
        LOCK.replace(A, "x").replace(B, A).replace("x", B),
        LOCK.replace("Flash.Infer_python", "flash-infer-python"),
        f"# made with numpy==1.0 --hash=sha256:{'d' * 64}\n" + LOCK,
        LOCK.replace("cu130 \\", f"cu130 \\  # or --hash=sha256:{'d' * 64}"),
    ],
    ids=["order of lines", "order of hashes", "spelling", "comment", "comment behind"],
)
def test_what_changes_no_wheel_changes_no_digest(same):
    assert same != LOCK
    assert wheels.digest(same) == wheels.digest(LOCK)


@pytest.mark.parametrize(
    "other",
    [
        LOCK.replace("2.11.0", "2.11.1"),
        LOCK.replace(C, "d" * 64),
        LOCK.replace(f" \\\n    --hash=sha256:{B}", ""),
        LOCK + f"numpy==2.3.5 --hash=sha256:{'d' * 64}\n",
    ],
    ids=["version", "hash", "fewer hashes", "another distribution"],
)
def test_every_version_and_hash_changes_the_digest(other):
    assert other != LOCK
    assert wheels.digest(other) != wheels.digest(LOCK)


def test_files_are_readable_whatever_the_umask(tmp_path, strict_umask):
    wheels.write_atomically(tmp_path / "new" / "file", "text\n")
    wheels.write_atomically(tmp_path / "secret", b"\x00", mode=0o600)
    assert (tmp_path / "new" / "file").read_text() == "text\n"
    assert stat.S_IMODE((tmp_path / "new" / "file").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "link").symlink_to("victim")
    wheels.write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")

    def refuse(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheels.os, "replace", refuse)
    with pytest.raises(OSError, match="No space"):
        wheels.write_atomically(tmp_path / "file", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("content", [b"", b'{"version": "0.5', b"[1, 2]", b"\xff\xfe", None])
def test_what_is_no_whole_manifest_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    assert wheels.read_manifest(str(tmp_path)) is None
    assert wheels.read_manifest(str(tmp_path / "manifest.json")) is None


def test_a_manifest_is_read_back(tmp_path):
    wheels.write_manifest(str(tmp_path / "new"), {"lock": "12345678"})
    assert wheels.read_manifest(str(tmp_path / "new")) == {"lock": "12345678"}


def test_the_report_is_the_last_object_that_was_printed():
    assert wheels.report('{"a": 1}\nwarning: {}\n{"a": 2}\n[3]\ngoodbye\n') == {"a": 2}


@pytest.mark.parametrize(("output", "shown"), [("", "nothing"), ("Traceback\n{'a': 1}\n", "Traceback")])
def test_an_output_without_a_report_is_shown(output, shown):
    with pytest.raises(wheels.InstallError, match=shown):
        wheels.report(output)


def test_a_new_environment(tmp_path):
    run, folder, cache = Recorder(), tmp_path / "release", tmp_path / "cache"
    site = {"UV_DEFAULT_INDEX": "https://mirror.example/simple", "UV_HTTP_TIMEOUT": 300}
    wheels.Installer("/opt/uv", str(cache), site, run).install_environment(LOCK, str(folder), "/usr/bin/python3")
    venv = ["/opt/uv", "venv", "--python", "/usr/bin/python3", "--no-python-downloads", "--allow-existing", str(folder)]
    sync = ["/opt/uv", "pip", "sync", "--require-hashes", "--no-build", "--python", f"{folder}/bin/python"]
    assert run.calls == [venv, [*sync, f"{folder}/lock.txt"]]
    assert run.environment == {
        "UV_CACHE_DIR": str(cache),
        "UV_SYSTEM_CERTS": "1",
        "UV_NO_PROGRESS": "1",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_HTTP_TIMEOUT": "300",
    }
    assert (folder / "lock.txt").read_text() == LOCK
    assert wheels.cache_marker(str(cache), LOCK).exists()
    assert wheels.cache_marker(str(cache), LOCK).relative_to(cache) == Path("inference.sglang") / wheels.digest(LOCK)


@pytest.mark.parametrize(
    ("present", "commands"),
    [
        (("bin/python", "pyvenv.cfg"), ["pip"]),
        (("bin/python",), ["venv", "pip"]),
        (("pyvenv.cfg",), ["venv", "pip"]),
    ],
)
def test_an_environment_is_made_until_it_is_whole(tmp_path, present, commands):
    for name in present:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    run = Recorder()
    wheels.Installer("uv", str(tmp_path / "cache"), {}, run).install_environment(LOCK, str(tmp_path), "python3")
    assert [argv[1] for argv in run.calls] == commands


def test_a_folder_of_wheels(tmp_path):
    run, folder = Recorder(), tmp_path / "toolkit"
    wheels.Installer("uv", str(tmp_path / "cache"), {}, run).install_folder(LOCK, str(folder), "python3")
    (argv,) = run.calls
    assert argv[:9] == [
        "uv",
        "pip",
        "install",
        "--require-hashes",
        "--no-build",
        "--python",
        "python3",
        "--target",
        str(folder),
    ]
    assert argv[9:] == ["--no-deps", "--requirements", f"{folder}/lock.txt"]


def test_a_failure_shows_the_command_and_the_end_of_its_words(tmp_path):
    run = Recorder((2, "", "x" * 5000 + "\nerror: hash mismatch for torch\n"))
    installer = wheels.Installer("uv", str(tmp_path / "cache"), {"UV_INDEX_SITE_PASSWORD": "hunter2"}, run)
    with pytest.raises(wheels.InstallError) as caught:
        installer.install_folder(LOCK, str(tmp_path), "python3")
    assert "`uv pip install --require-hashes" in str(caught.value)
    assert str(caught.value).endswith("error: hash mismatch for torch")
    assert len(str(caught.value)) < 2500
    assert "hunter2" not in str(caught.value)
    assert not wheels.cache_marker(str(tmp_path / "cache"), LOCK).exists()


def test_a_missing_uv_names_the_role_that_brings_it(tmp_path):
    def run(argv, environment):
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    with pytest.raises(
        wheels.InstallError, match=r"/nowhere/uv cannot be run \(No such file or directory\): run the uv role first"
    ):
        wheels.Installer("/nowhere/uv", str(tmp_path / "cache"), {}, run).install_folder(LOCK, str(tmp_path), "python3")


def make_wheel(folder: Path) -> str:
    """A wheel of two files; its lock."""
    folder.mkdir()
    files = {"example/one.py": "1\n", "example/two.py": "2\n"}
    files |= {f"example-1.0.dist-info/{name}": text for name, text in (
        ("METADATA", "Metadata-Version: 2.1\nName: example\nVersion: 1.0\n"),
        ("WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
    )}  # fmt: skip
    record = "example-1.0.dist-info/RECORD,,\n"
    for name, text in files.items():
        hashed = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={hashed},{len(text)}\n"
    path = folder / "example-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, "example-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    return f"example==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


UV = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


@pytest.mark.parametrize("method", ["install_environment", "install_folder"])
def test_an_installation_that_was_killed_is_completed_by_uv(tmp_path, method):
    """uv links METADATA before the files, and believes in it when it is started again."""
    lock, folder = make_wheel(tmp_path / "wheels"), tmp_path / "installed"
    site = {"UV_NO_INDEX": "1", "UV_OFFLINE": "1", "UV_FIND_LINKS": str(tmp_path / "wheels")}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "VIRTUAL_ENV"))}

    def run(argv, environment):
        done = subprocess.run(argv, env=inherited | environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    install = getattr(wheels.Installer(str(UV), str(tmp_path / "cache"), site, run), method)
    install(lock, str(folder), sys.executable)
    (information,) = folder.rglob("example-1.0.dist-info")
    (information / "INSTALLER").unlink()
    (information.parent / "example" / "two.py").unlink()

    install(lock, str(folder), sys.executable)
    assert (information.parent / "example" / "two.py").read_text() == "2\n"
    assert (information / "INSTALLER").exists()

    before = (information / "INSTALLER").stat().st_mtime_ns
    install(lock, str(folder), sys.executable)
    assert (information / "INSTALLER").stat().st_mtime_ns == before, "what is whole is left alone"


def test_shipped_locks_hold_nothing_but_pins_with_hashes():
    locks = sorted((Path(__file__).parents[2] / "roles").glob("*/files/locks/*.txt"))
    assert locks
    for lock in locks:
        entries = lock.read_text().replace("\\\n", " ").splitlines()
        assert len(wheels.pins(lock.read_text())) == len(entries), lock
        assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_one_installs_into_a_folder_at_a_time(tmp_path):
    folder = str(tmp_path / "releases" / "r")
    other = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    argv = [sys.executable, "-c", other, str(tmp_path / "releases" / ".r.lock")]
    with wheels.alone(folder):
        assert "BlockingIOError" in subprocess.run(argv, capture_output=True, text=True, check=False).stderr
    assert subprocess.run(argv, check=False).returncode == 0
