# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which releases go, what goes with them, and what never does. The wheel cache is laid out as uv 0.13.9 does."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import activations, health, pruning, wheels
from ansible_collections.inference.sglang.plugins.modules import sglang_prune

HASH = f" --hash=sha256:{'a' * 64}"
SIZE = 4096 * 256
MB = SIZE * 1e-6


class Node:
    """Releases below ``root/releases``, their wheels in ``root/cache``, instances in ``root/etc``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.releases, self.cache, self.kernels = root / "releases", root / "cache", root / "kernels"
        for folder in (self.releases, self.cache, self.kernels, root / "etc", root / "units", root / "proc"):
            folder.mkdir(parents=True)
        (self.cache / ".lock").touch()
        self.places = pruning.Places(self.cache, (root / "toolkits",), (root / "cpu_engine",))

    def unpack(self, wheel: str, index: str = "pypi") -> Path:
        """Put a wheel of one file into the cache, unless it is there; where it is unpacked."""
        name, version = wheel.split("==")
        pointer = self.cache / "wheels-v8" / index / name / f"{version}-py3-none-any"
        archive = self.cache / "archive-v0" / f"id-{index.replace('/', '-')}-{name}-{version}"
        if not archive.exists():
            archive.mkdir(parents=True)
            (archive / f"{name}.py").write_bytes(b"x" * SIZE)
            pointer.parent.mkdir(parents=True, exist_ok=True)
            pointer.symlink_to(os.path.relpath(archive, pointer.parent))
            for suffix in (".http", ".msgpack", ".lock"):
                pointer.with_name(pointer.name + suffix).touch()
        return archive

    def install(self, path: Path, lock: str, linked: bool = True) -> None:
        """Install a lock into a folder, by hard links into the cache or by copies."""
        path.mkdir(parents=True)
        (path / wheels.LOCK).write_text(lock)
        (path / "pyvenv.cfg").touch()
        for wheel in lock.replace(HASH, "").split():
            for file in self.unpack(wheel).iterdir():
                (path / file.name).hardlink_to(file) if linked else (path / file.name).write_bytes(file.read_bytes())
        wheels.write_atomically(wheels.cache_marker(str(self.cache), lock), lock)

    def release(self, name: str, lock: str, age: int = 0, linked: bool = True) -> Path:
        """A complete release that was installed ``age`` days ago, with what lies beside it."""
        path = self.releases / name
        self.install(path, lock, linked)
        wheels.write_manifest(str(path), {"version": name})
        os.utime(path / wheels.MANIFEST, (10**9 - age * 86400,) * 2)
        (self.kernels / f"{name}-13.0-0a1b2c3d").mkdir()
        (self.root / "cpu_engine" / name).mkdir(parents=True)
        return path

    def names(self, release: str, slot: str = "") -> None:
        """Let a plan of the instance tiny, or one of its slots, name a release."""
        path = self.root / "etc" / "tiny" / slot / "plan.json"
        wheels.write_atomically(path, json.dumps({"release_path": str(self.releases / release)}))

    @property
    def cached(self) -> set[str]:
        return {path.name.removeprefix("id-pypi-") for path in (self.cache / "archive-v0").iterdir()}

    @property
    def there(self) -> set[str]:
        return {path.name for path in self.releases.iterdir() if path.is_dir()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path / "node")
    monkeypatch.setattr(activations, "FOLDER", made.root / "etc")
    monkeypatch.setattr(health, "UNIT_FOLDER", made.root / "units")
    monkeypatch.setattr(pruning, "KERNEL_CACHES", made.kernels)
    return made


@pytest.fixture
def prune(node: Node, capsys: pytest.CaptureFixture[str]):
    """Run the module; its result."""

    def call(keep: int, check: bool = False) -> dict[str, object]:
        arguments = {
            "releases_path": str(node.releases),
            "cache_path": str(node.cache),
            "keep": keep,
            "others": [str(path) for path in node.places.others],
            "beside": [str(path) for path in node.places.beside],
            "_ansible_check_mode": check,
        }
        with patch_module_args(arguments), pytest.raises(SystemExit):
            sglang_prune.main()
        return json.loads(capsys.readouterr().out)

    return call


def test_the_oldest_go_and_with_them_all_that_is_theirs(node, prune):
    node.release("0.1-a-none", "torch==1 sglang==1".replace(" ", "\n"), age=3)
    node.release("0.2-b-none", "torch==1\nsglang==2", age=2)
    node.release("0.3-c-none", "torch==2\nsglang==3", age=1)
    wanted = [{"name": "0.1-a-none", "why": "older than the 2 to keep"}]
    foreseen = prune(2, check=True)
    assert (foreseen["changed"], foreseen["removed"], foreseen["freed_mb"]) == (True, wanted, 0)
    assert node.there == {"0.1-a-none", "0.2-b-none", "0.3-c-none"}
    result = prune(2)
    assert (result["changed"], result["removed"], result["freed_mb"]) == (True, wanted, int(MB))
    assert node.there == {"0.2-b-none", "0.3-c-none"}
    assert {path.name for path in node.kernels.iterdir()} == {"0.2-b-none-13.0-0a1b2c3d", "0.3-c-none-13.0-0a1b2c3d"}
    assert {path.name for path in (node.root / "cpu_engine").iterdir()} == node.there
    assert node.cached == {"torch-1", "torch-2", "sglang-2", "sglang-3"}
    assert not list((node.cache / "wheels-v8/pypi/sglang").glob("1-*"))
    assert prune(2)["changed"] is False


def test_none_goes_for_zero(node, prune):
    for age in range(3):
        node.release(f"0.{age}-a-none", f"sglang=={age}", age=age)
    (node.releases / "0.9-0a1b2c3d-none").mkdir()
    assert prune(0)["changed"] is False


@pytest.mark.parametrize("slot", ["", "good", "previous"])
def test_what_an_instance_runs_from_or_would_go_back_to_stays(node, prune, slot):
    node.release("0.1-a-none", "sglang==1", age=9)
    node.release("0.2-a-none", "sglang==2", age=5)
    node.release("0.3-a-none", "sglang==3", age=1)
    node.names("0.1-a-none", slot)
    result = prune(1)
    assert node.there == {"0.1-a-none"}  # it counts: the newest one goes, too
    path = f"{node.root}/etc/tiny/{slot + '/' if slot else ''}plan.json"
    assert {"name": "0.1-a-none", "why": f"named by {path}"} in result["kept"]


def test_what_a_unit_names_stays(node, prune):
    node.release("0.1-a-none", "sglang==1", age=9)
    node.release("0.2-a-none", "sglang==2", age=5)
    unit = node.root / "units" / "sglang-other.service"
    unit.write_text(f'ExecStart="{node.releases}/0.1-a-none/bin/python" -m sglang.launch_server\n')
    prune(1)
    assert node.there == {"0.1-a-none"}


@pytest.fixture
def two(node: Node) -> Node:
    """Two releases, of which the older one stays only if it is seen to be in use; links lead to it."""
    node.release("0.1-a-none", "sglang==1", age=9)
    node.release("0.2-a-none", "sglang==2", age=5)
    (node.root / "link").symlink_to(node.releases)
    (node.releases / "current").symlink_to("0.1-a-none")
    (node.root / "inside").symlink_to("releases/0.1-a-none/lib")
    (node.releases / "0.1-a-none/bin").mkdir()
    (node.releases / "0.1-a-none/bin/python").symlink_to(sys.executable)  # it leads out, as uv's does
    return node


SPELLINGS = ["link/0.1-a-none", "releases/current", "link/../releases/0.1-a-none", "releases/0.1-a-none/lib", "inside"]


@pytest.mark.parametrize("written", SPELLINGS)
def test_a_release_is_known_however_its_path_is_written(two, written):
    path = two.root / "etc/tiny/plan.json"
    wheels.write_atomically(path, json.dumps({"release_path": f"{two.root}/{written}"}))
    for releases in (two.releases, two.root / "link"):
        assert pruning.named(releases) == {"0.1-a-none": f"named by {path}"}
    path.unlink()
    process = two.root / "proc" / "812"
    process.mkdir()
    (process / "cmdline").write_text(f"{two.root}/{written}/bin/python\0-m\0sglang\0")
    assert "0.1-a-none" in pruning.running(two.releases, two.root / "proc")


@pytest.mark.parametrize("line", ["ExecStart='{}/bin/python' -m x", 'Environment=A="x:{}:y"', "Environment=A={}"])
@pytest.mark.parametrize("file", ["kimi.service", "sglang-tiny.service.d/override.conf"])
def test_any_service_may_name_a_release(two, file, line):
    units = two.root / "units"
    (units / "lost.service").symlink_to("/nonexistent")
    (units / "folder.service").mkdir()
    wheels.write_atomically(units / file, line.format(two.releases / "0.1-a-none") + "\n")
    (units / file).write_bytes(b"# \xff\0\n" + (units / file).read_bytes())
    assert pruning.named(two.releases) == {"0.1-a-none": f"named by {units / file}"}


def test_services_are_read_wherever_systemd_looks(two, monkeypatch):
    monkeypatch.setattr(pruning.audit, "FOLDERS", (str(two.root / "vendor"),))
    wheels.write_atomically(two.root / "vendor/kimi.service", f"ExecStart={two.releases}/0.1-a-none/bin/python\n")
    assert list(pruning.named(two.releases)) == ["0.1-a-none"]


def test_locks_of_installations_that_are_no_files_are_passed_over(two):
    (two.releases / ".x.lock").mkdir()
    (two.releases / ".y.lock").symlink_to("/nonexistent")
    assert pruning.installing(two.releases) == {}


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("etc/tiny/good/plan.json", "{"),
        ("etc/tiny/plan.json", '{"release_path": "here"}'),
        ("etc/tiny/plan.json", '{"release_path": "/\\u0000"}'),
        ("etc/tiny/plan.json", "[" * 100_000),
        ("releases/0.0-a-none/manifest.json", "[" * 100_000),
        ("releases/0.0-a-none/manifest.json", None),
    ],
    ids=["no JSON", "relative", "NUL", "deep", "deep manifest", "manifest is a folder"],
)
def test_what_cannot_be_read_stops_it(node, prune, monkeypatch, file, content):
    said = []  # once a test has loaded Ansible's controller, a module's own result holds no warnings
    monkeypatch.setattr(sglang_prune.AnsibleModule, "warn", lambda _module, text: said.append(text))
    for age in range(2):
        node.release(f"0.{age}-a-none", f"sglang=={age}", age=age)
    (node.root / file).unlink(missing_ok=True)
    wheels.write_atomically(node.root / file, content) if content else (node.root / file).mkdir()
    result = prune(1)
    assert result["changed"] is False
    assert "prune.unreadable" in said[0]
    assert len(node.there) == 2


def test_what_a_process_runs_from_stays(node, prune):
    """One that has ended otherwise: it holds a library of the release, and names it nowhere."""
    path = node.release("0.1-a-none", "sglang==1", age=9)
    node.release("0.2-a-none", "sglang==2", age=5)
    script = (
        "import mmap, sys; f = open(input()); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close();"
        "print('mapped', flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(f"{path}/sglang.py\n")
    process.stdin.flush()
    assert process.stdout.readline() == "mapped\n"
    result = prune(1)
    process.communicate("\n")
    assert {"name": "0.1-a-none", "why": f"process {process.pid} runs from it"} in result["kept"]
    assert node.there == {"0.1-a-none"}


@pytest.mark.parametrize(
    ("file", "content"), [("cmdline", "/r/0.1-a-none/bin/python\0-m\0sglang"), ("maps", "08 /r/0.1-a-none/x.so\n")]
)
def test_traces_of_a_process(tmp_path, file, content):
    (tmp_path / "812").mkdir()
    (tmp_path / "812" / file).write_text(content)
    (tmp_path / "812" / "exe").symlink_to("/usr/bin/python3")
    assert pruning.running(Path("/r"), tmp_path) == {"0.1-a-none": "process 812 runs from it"}


@pytest.fixture
def installer(node: Node) -> Iterator[None]:
    """Somebody installs into 0.9-0a1b2c3d-none."""
    path = node.releases / "0.9-0a1b2c3d-none"
    node.install(path, "sglang==9" + HASH)
    with (node.releases / ".0.9-0a1b2c3d-none.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def test_what_is_being_installed_stays_and_its_wheels(node, prune, installer):
    node.release("0.1-a-none", "sglang==1")
    for check in (True, False):
        assert {"name": "0.9-0a1b2c3d-none", "why": "being installed"} in prune(1, check=check)["kept"]
    assert node.there == {"0.1-a-none", "0.9-0a1b2c3d-none"}


def test_what_was_never_completed_goes_whatever_its_age(node, prune):
    node.release("0.1-a-none", "torch==1\nsglang==1")
    node.install(node.releases / "0.9-0a1b2c3d-none", "torch==1\nsglang==9" + HASH)
    assert prune(3)["removed"] == [{"name": "0.9-0a1b2c3d-none", "why": "half-made"}]
    assert (node.there, node.cached) == ({"0.1-a-none"}, {"torch-1", "sglang-1"})


def test_what_is_not_a_release_is_not_touched(node, prune):
    node.release("0.1-a-none", "sglang==1")
    for name, file in (("notes", "readme"), ("venv", "pyvenv.cfg"), ("wheels", wheels.LOCK)):
        (node.releases / name).mkdir()
        (node.releases / name / file).touch()
    node.install(node.releases / "myvenv", "numpy==1" + HASH)
    node.install(node.releases / "0.9-0a1b2c3d-none", "numpy==1")
    (node.releases / ".backup.removed").mkdir()
    (node.releases / ".backup.removed" / "precious").touch()
    (node.releases / "latest").symlink_to("0.1-a-none")
    before = node.there
    assert prune(1)["changed"] is False
    assert node.there == before


def test_kernel_caches_of_others_and_what_links_lead_to_stay(node, prune, tmp_path):
    """The caches belong to the service user, who may lay links there."""
    node.release("0.1-a-none", "sglang==1", age=2)
    node.release("0.2-a-none", "sglang==2", age=1)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (node.kernels / "0.1-a-none-evil").symlink_to(tmp_path / "precious")
    (node.kernels / "0.1-a-none-13.0-0a1b2c3d" / "evil").symlink_to(tmp_path / "precious")
    (node.kernels / "0.1-a-none2-13.0").mkdir()
    prune(1)
    assert (tmp_path / "precious" / "file").exists()
    left = {path.name for path in node.kernels.iterdir() if not path.is_symlink()}
    assert left == {"0.1-a-none2-13.0", "0.2-a-none-13.0-0a1b2c3d"}


def test_kernel_caches_of_a_release_whose_name_goes_on_stay(node):
    for name in ("kimi", "kimi-2"):
        node.release(name, "sglang==1")
    pruning.remove(next(found for found in pruning.survey(node.releases) if found.name == "kimi"), node.places)
    assert [path.name for path in node.kernels.iterdir()] == ["kimi-2-13.0-0a1b2c3d"]


def test_a_release_stays_complete_while_its_half_removed_forerunner_is_in_the_way(node, prune):
    node.install(node.releases / ".0.1-a-none.removed", "sglang==0")
    node.release("0.1-a-none", "sglang==1", age=2)
    node.release("0.2-a-none", "sglang==2", age=1)
    with (node.cache / ".lock").open() as guard:
        fcntl.flock(guard, fcntl.LOCK_SH)
        kept = {entry["why"] for entry in prune(1)["kept"]}
    assert f"{node.releases}/.0.1-a-none.removed is in the way" in kept
    assert wheels.read_manifest(str(node.releases / "0.1-a-none")) is not None
    assert len(prune(1)["removed"]) == 2
    assert node.there == {"0.2-a-none"}


def test_locks_of_others_that_are_no_text_are_no_obstacle(node, prune):
    node.release("0.1-a-none", "sglang==1", age=2)
    node.release("0.2-a-none", "sglang==2", age=1)
    for name in ("other", "folder"):
        (node.releases / name).mkdir()
    (node.releases / "other" / wheels.LOCK).write_bytes(b"\xff\xfe")
    (node.releases / "folder" / wheels.LOCK).mkdir()
    assert [entry["name"] for entry in prune(1)["removed"]] == ["0.1-a-none"]


def test_a_wheel_that_another_node_uses_stays(node, prune, tmp_path):
    """It shares the cache, and its releases are not seen from here."""
    node.release("0.1-a-none", "torch==1\nsglang==1", age=2)
    node.release("0.2-a-none", "sglang==2", age=1)
    (tmp_path / "other-node.py").hardlink_to(node.unpack("torch==1") / "torch.py")
    prune(1)
    assert node.cached == {"torch-1", "sglang-2"}


def test_wheels_of_the_toolkit_and_of_copies_stay(node, prune):
    """On another mount files are copied: nothing is linked, and only the locks tell what is used."""
    node.release("0.1-a-none", "nvcc==1\ntorch==1\nsglang==1", age=2, linked=False)
    node.release("0.2-a-none", "torch==1\nsglang==2", age=1, linked=False)
    node.install(node.root / "toolkits" / "13.0-a", "nvcc==1", linked=False)
    prune(1)
    assert node.cached == {"nvcc-1", "torch-1", "sglang-2"}


def test_wheels_of_another_index_go_too_and_others_of_the_name_stay(node):
    node.unpack("sglang==1", "index/0123456789abcdef")
    node.unpack("sglang==1.1")
    pruning.forget_wheels(node.cache, "sglang==1", [])
    assert node.cached == {"sglang-1.1"}
    assert len(list((node.cache / "wheels-v8/pypi/sglang").iterdir())) == 4


def test_the_marks_of_locks_that_are_cached_no_longer_go(node, prune):
    """Or an upgrade would be taken for one that needs no disk."""
    node.release("0.1-a-none", "torch==1\nsglang==1", age=2)
    node.release("0.2-a-none", "torch==1\nsglang==2", age=1)
    elsewhere = "sglang==1\nother==1"
    wheels.write_atomically(wheels.cache_marker(str(node.cache), elsewhere), elsewhere)
    wheels.write_atomically(wheels.cache_marker(str(node.cache), "unknown==1"), "")
    prune(1)
    left = [path.name for path in wheels.cache_marker(str(node.cache), "").parent.iterdir()]
    assert left == [wheels.digest("torch==1\nsglang==2")]


def test_while_uv_works_the_wheels_wait_for_the_next_run(node, prune):
    node.release("0.1-a-none", "sglang==1", age=2)
    node.release("0.2-a-none", "sglang==2", age=1)
    with (node.cache / ".lock").open() as guard:
        fcntl.flock(guard, fcntl.LOCK_SH)
        result = prune(1)
    assert result["changed"] is True
    assert "the next run goes on" in result["kept"][1]["why"]
    assert node.cached == {"sglang-1", "sglang-2"}
    assert [path.name for path in (node.releases / ".0.1-a-none.removed").iterdir()] == [wheels.LOCK]
    assert prune(1)["removed"] == [{"name": "0.1-a-none", "why": "half-removed"}]
    assert (node.there, node.cached) == ({"0.2-a-none"}, {"sglang-2"})


def test_a_release_that_is_half_removed_and_installed_again_keeps_what_is_its_own(node, prune):
    node.install(node.releases / ".0.1-a-none.removed", "sglang==1")
    node.release("0.1-a-none", "sglang==1")
    assert prune(1)["removed"] == [{"name": "0.1-a-none", "why": "half-removed"}]
    assert node.there == {"0.1-a-none"}
    assert len(list(node.kernels.iterdir())) == len(list((node.root / "cpu_engine").iterdir())) == 1
    assert node.cached == {"sglang-1"}


class Killed(BaseException):
    """The run ends here."""


def test_a_removal_that_is_killed_leaves_nothing_that_looks_complete(node, prune, monkeypatch):
    """Before each file that is removed or renamed, until none is left; the next run ends it."""
    for limit in range(100):
        node.release("0.1-a-none", "sglang==1", age=2)
        left = iter(range(limit))

        def dying(function, left=left):
            def call(*arguments, **options):
                if next(left, None) is None:
                    raise Killed
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for place, name in ((Path, "unlink"), (Path, "rename"), (pruning.shutil, "rmtree")):
                patch.setattr(place, name, dying(getattr(place, name)))
            try:
                pruning.remove(pruning.survey(node.releases)[0], node.places)
                break
            except Killed:
                pass
        assert "complete" not in [release.state for release in pruning.survey(node.releases)] or limit == 0
        for release in pruning.survey(node.releases):
            pruning.remove(release, node.places)
        assert (node.there, node.cached, list(node.kernels.iterdir())) == (set(), set(), [])
    assert limit > 6, "it was never killed"
