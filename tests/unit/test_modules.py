# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The modules of the main job, run for real with small programs in place of uv, nvcc, systemctl and the engine."""

from __future__ import annotations

import ast
import datetime
import functools
import getpass
import http.server
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.inference.sglang.plugins.module_utils import (
    activations,
    credentials,
    health,
    tiny_llama,
    toolkits,
    units,
    wheels,
)
from ansible_collections.inference.sglang.plugins.module_utils import driver_stub as stub
from ansible_collections.inference.sglang.plugins.module_utils.flag_sources import read_parser
from ansible_collections.inference.sglang.plugins.modules import (
    cuda_toolkit,
    driver_stub,
    flashinfer_cache,
    launch_check,
    sglang_activation,
    sglang_instance,
    sglang_ready,
    sglang_release,
    tiny_model,
    uv,
)

Run = Callable[..., dict[str, Any]]
LOCK = f"sglang==0.5.1 --hash=sha256:{'a' * 64}\nflashinfer-python==0.6.11 --hash=sha256:{'b' * 64}\n"
USER = getpass.getuser()


@pytest.fixture(autouse=True)
def umask():
    """The modules set their process's umask; root's own is strict here."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call a module's main with these arguments; its result."""

    def call(module: ModuleType, check: bool = False, **arguments: object) -> dict[str, Any]:
        with patch_module_args(arguments | {"_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a shell script on the PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, script: str) -> Path:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
        return folder / name

    return write


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def snapshot(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def fat_binary(architecture: int) -> bytes:
    entry = toolkits.cubins._ENTRY.pack(toolkits.cubins._ELF, 0, 40, 0, 0, 0, 0, 0, architecture).ljust(40, b"\0")
    return toolkits.cubins._FATBIN.pack(0xBA55ED50, 1, toolkits.cubins._FATBIN.size, len(entry)) + entry


# uv


@pytest.fixture
def interpreter(tmp_path: Path, program) -> Path:
    """A Python whose venv has a pip that installs uv, unless the file ``broken`` is there."""
    return program(
        "python3",
        f"""[ "$2 $3" = "venv --clear" ] || exit 9
        mkdir -p "$4/bin"
        cat > "$4/bin/python" <<'END'
#!/bin/sh
grep -q 'uv==' || exit 8
echo "$* $PIP_INDEX_URL" > {tmp_path}/pip.log
[ ! -e {tmp_path}/broken ] || {{ echo no index >&2; exit 1; }}
touch "$(dirname "$0")/uv"
END
        chmod +x "$4/bin/python\"""",
    )


def test_uv_is_installed_once_by_its_hash(run, tmp_path, interpreter):
    given = {"path": str(tmp_path / "uv"), "lock": "uv==1 --hash=sha256:0", "python": str(interpreter)}
    given["environment"] = {"PIP_INDEX_URL": "https://joe:hunter2@mirror.example/simple"}
    assert run(uv, check=True, **given)["changed"] is True
    assert not (tmp_path / "uv").exists()
    assert run(uv, **given)["changed"] is True
    pip = (tmp_path / "pip.log").read_text()
    assert "--require-hashes" in pip
    assert pip.endswith("https://joe:hunter2@mirror.example/simple\n")
    assert run(uv, **given)["changed"] is False


def test_an_interrupted_uv_is_completed(run, tmp_path, interpreter):
    given = {"path": str(tmp_path / "uv"), "lock": "uv==1 --hash=sha256:0", "python": str(interpreter)}
    (tmp_path / "broken").touch()
    assert "no index" in run(uv, **given)["msg"]
    (tmp_path / "broken").unlink()
    assert run(uv, **given)["changed"] is True
    assert (tmp_path / "uv" / "bin" / "uv").exists()


# cuda_toolkit


@pytest.fixture
def toolkit(tmp_path: Path, program, monkeypatch) -> dict[str, object]:
    """Arguments of cuda_toolkit. Its uv unpacks a compiler that copies a prepared binary."""
    (tmp_path / "binary").write_bytes(fat_binary(120))
    uv = program(
        "uv",
        f"""echo "$UV_DEFAULT_INDEX $UV_HTTP_TIMEOUT" >> {tmp_path}/uv.log
        home={tmp_path}/toolkit/nvidia/cu13; mkdir -p $home/bin $home/lib
        printf '#!/bin/sh\\ncp {tmp_path}/binary "$4"\\n' > $home/bin/nvcc; chmod +x $home/bin/nvcc""",
    )
    monkeypatch.setattr(toolkits, "compile_library", lambda _source, path, _soname: path.touch())
    return {
        "path": str(tmp_path / "toolkit"),
        "lock": LOCK,
        "uv": str(uv),
        "cache_path": str(tmp_path / "cache"),
        "environment": {"UV_DEFAULT_INDEX": "https://joe:hunter2@mirror.example/simple", "UV_HTTP_TIMEOUT": 1},
    }


def test_a_toolkit_is_installed_once(run, toolkit, tmp_path):
    before = snapshot(tmp_path)
    foretold = run(cuda_toolkit, check=True, **toolkit)
    assert (foretold["changed"], foretold["manifest"]) == (True, {})
    assert snapshot(tmp_path) == before
    first = run(cuda_toolkit, **toolkit)
    assert (first["changed"], first["cuda_home"]) == (True, f"{tmp_path}/toolkit/nvidia/cu13")
    assert first["manifest"] == wheels.read_manifest(str(tmp_path / "toolkit"))
    assert first["manifest"]["architectures"] == {"120f": [120]}
    assert first["manifest"]["versions"]["sglang"] == "0.5.1", "a timeout of 1 blanks no other 1"
    assert mode(tmp_path / "toolkit") == 0o755
    again = run(cuda_toolkit, **toolkit)
    assert (again["changed"], again["manifest"]) == (False, first["manifest"])
    assert run(cuda_toolkit, **toolkit | {"lock": LOCK.replace("0.5.1", "0.5.2")})["changed"] is True


def test_uv_is_given_its_environment_and_nobody_else(run, toolkit, tmp_path):
    shown = json.dumps(run(cuda_toolkit, **toolkit))
    assert (tmp_path / "uv.log").read_text() == "https://joe:hunter2@mirror.example/simple 1\n"
    assert "hunter2" not in shown
    assert "hunter2" not in (tmp_path / "toolkit/manifest.json").read_text()


def test_a_toolkit_that_proves_nothing_is_not_installed(run, toolkit, tmp_path):
    (tmp_path / "binary").write_bytes(b"")
    failed = run(cuda_toolkit, **toolkit)
    assert failed["failed"] is True
    assert "no architecture" in failed["msg"]
    assert wheels.read_manifest(str(tmp_path / "toolkit")) is None
    (tmp_path / "binary").write_bytes(fat_binary(120))
    assert run(cuda_toolkit, **toolkit)["changed"] is True


@pytest.mark.parametrize("module", [cuda_toolkit, sglang_release])
def test_a_missing_uv_is_told(run, toolkit, module):
    more = {"version": "0.5.1", "cuda": "13.0", "python_version": "3.11", "flags": "[]", "import_script": ""}
    given = toolkit | (more if module is sglang_release else {})
    failed = run(module, **given | {"uv": "/nowhere/uv"})
    assert failed["msg"] == "/nowhere/uv cannot be run (No such file or directory): run the uv role first"


def test_a_folder_that_cannot_be_written_is_told(run, toolkit, tmp_path):
    (tmp_path / "toolkit").write_text("a file")
    failed = run(cuda_toolkit, **toolkit)
    assert str(tmp_path / "toolkit") in failed["msg"]
    assert "exception" not in failed


# sglang_release

SOURCES = """class ServerArgs:
    def add_cli_args(parser):
        parser.add_argument("--pp-size", "--stages", type=int, default=1)
"""
FLAGS = [
    {
        "names": ["--pp-size", "--stages"],
        "nargs": None,
        "type": "int",
        "choices": None,
        "default": 1,
        "refused": "",
        "hidden": False,
    }
]
REPORT = {
    "torch_cuda": "13.0",
    "flags": FLAGS,
    "header": "/usr/include/python3.11/Python.h",
    "header_exists": True,
    "missing_libraries": [],
    "versions": {"sglang": "0.5.1", "flashinfer-python": "0.6.11"},
}


@pytest.fixture
def release(tmp_path: Path, program) -> dict[str, object]:
    """Arguments of sglang_release. Its uv makes an environment whose interpreter is this one."""
    folder = tmp_path / "release"
    sources = folder / "lib/python3.11/site-packages/sglang/srt"
    uv = program(
        "uv",
        f"""mkdir -p {folder}/bin; touch {folder}/pyvenv.cfg
        printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' > {folder}/bin/python; chmod +x {folder}/bin/python
        mkdir -p {sources}; printf '%s' '{SOURCES}' > {sources}/server_args.py""",
    )
    return {
        "version": "0.5.1",
        "path": str(folder),
        "lock": LOCK,
        "cuda": "13.0",
        "python_version": "3.11",
        "flags": read_parser(FLAGS).to_json(),
        "import_script": f"import json; print('a library says hello'); print(json.dumps({REPORT})); print('$HOME')",
        "uv": str(uv),
        "cache_path": str(tmp_path / "cache"),
    }


def test_a_release_is_installed_once(run, release, tmp_path):
    before = snapshot(tmp_path)
    assert run(sglang_release, check=True, **release)["changed"] is True
    assert snapshot(tmp_path) == before
    first = run(sglang_release, **release)
    assert (first["changed"], first["manifest"]["versions"]) == (True, REPORT["versions"])
    assert first["manifest"] == wheels.read_manifest(str(tmp_path / "release"))
    assert first["manifest"]["flags"] == 2, "one flag of two spellings"
    assert mode(tmp_path / "release/bin") == 0o755
    again = run(sglang_release, **release | {"import_script": "raise SystemExit('not run')"})
    assert (again["changed"], again["manifest"]) == (False, first["manifest"])


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("raise ImportError('libcuda.so.1')", "does not import:\nTraceback"),
        ("", "No report was printed"),
        ("print('{\"half\": ')", 'No report was printed, but:\n{"half":'),
        (f"print({json.dumps(json.dumps(REPORT | {'torch_cuda': '12.8'}))})", "release.cuda"),
        (
            f"print({json.dumps(json.dumps(REPORT | {'flags': [FLAGS[0] | {'default': 8}]}))})",
            "The parser and the shipped flag table differ: --pp-size: default",
        ),
    ],
)
def test_a_release_that_is_not_as_promised_is_not_complete(run, release, tmp_path, script, words):
    failed = run(sglang_release, **release | {"import_script": script})
    assert failed["failed"] is True
    assert words in failed["msg"]
    assert wheels.read_manifest(str(tmp_path / "release")) is None
    assert run(sglang_release, **release)["changed"] is True


def test_sources_that_someone_changed_are_found(run, release, tmp_path):
    uv = Path(str(release["uv"]))
    uv.write_text(uv.read_text().replace("--stages", "--stage"))
    failed = run(sglang_release, **release)
    assert "release.flags" in failed["msg"]
    assert "site-packages/sglang and the shipped flag table differ: --stages is only shipped" in failed["msg"]
    assert wheels.read_manifest(str(tmp_path / "release")) is None


def test_a_bad_patch_fails_with_the_finding(run, release):
    failed = run(sglang_release, **release | {"patches": [{"id": "raise-limit"}]})
    assert "patch.key_missing" in failed["msg"]


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"version": "0.5.0"}, "SGLang 0.5.0, not 0.5.1"),
        ({"lock": "12345678"}, "the wheels of lock 12345678, not of"),
        ({"patch_set": "12345678"}, "patch set 12345678, not none"),
    ],
)
def test_a_folder_of_another_release_is_not_taken_for_this_one(run, release, tmp_path, held, words):
    manifest = {"version": "0.5.1", "lock": wheels.digest(LOCK), "patch_set": "none"}
    wheels.write_manifest(str(tmp_path / "release"), manifest)
    assert run(sglang_release, **release)["changed"] is False
    wheels.write_manifest(str(tmp_path / "release"), manifest | held)
    failed = run(sglang_release, **release)
    assert failed["msg"].startswith(f"{tmp_path}/release holds {words}")


# flashinfer_cache and launch_check

# Drops what only root may do, and keeps what it was asked for.
SETPRIV = 'echo "$1 $2 $3 $4 $5" > "$(dirname "$0")/setpriv.log"; shift 5; exec "$@"'


@pytest.fixture
def user(program, monkeypatch) -> str:
    """The user of the tests in place of the service user."""
    program("setpriv", SETPRIV)
    monkeypatch.setattr(flashinfer_cache.shutil, "chown", lambda _path, _user, _group: None)
    return USER


@pytest.fixture
def cache(tmp_path: Path, user: str) -> dict[str, object]:
    """Arguments of flashinfer_cache, whose script writes the library norm.so."""
    folder, built = tmp_path / "release", tmp_path / "cache"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to(sys.executable)
    wheels.write_manifest(str(folder), {"versions": REPORT["versions"]})
    script = f"""
import json, os, sys
open("norm.so", "wb").write({fat_binary(120)!r})
libraries = dict.fromkeys(sys.argv[1:], os.getcwd() + "/norm.so")
print(json.dumps({{"libraries": libraries, "cuda": os.environ["CUDA_HOME"]}}))
"""
    return {
        "release_path": str(folder),
        "cache_path": str(built),
        "modules": ["norm"],
        "architectures": "12.0f",
        "version": "0.6.11",
        "environment": {"CUDA_HOME": "/t", "OMP_NUM_THREADS": 1},
        "user": user,
        "build_script": script,
    }


def test_kernels_are_compiled_once(run, cache, tmp_path):
    assert run(flashinfer_cache, check=True, **cache) == run(flashinfer_cache, check=True, **cache)
    assert not (tmp_path / "cache").exists()
    first = run(flashinfer_cache, **cache)
    library = {"path": f"{tmp_path}/cache/norm.so", "architectures": [120]}
    assert (first["changed"], first["libraries"]) == (True, {"norm": library})
    assert (first["compiled"], first["seconds"]) == (["norm"], {})
    assert mode(tmp_path / "cache") == 0o755
    assert (tmp_path / "programs/setpriv.log").read_text() == f"--reuid {USER} --regid {USER} --init-groups\n"
    again = run(flashinfer_cache, **cache)
    assert (again["changed"], again["compiled"]) == (False, [])
    (tmp_path / "cache/norm.so").unlink()
    assert run(flashinfer_cache, **cache)["changed"] is True


# Compiles all but rope, and says which compilers it may start.
HALF = f"""
import json, os, sys
open("lib.so", "wb").write({fat_binary(120)!r})
bounds = " ".join(os.environ[name] for name in ("MAX_JOBS", "FLASHINFER_NVCC_THREADS"))
failed = {{name: f"nvcc: out of registers ({{bounds}})" for name in sys.argv[1:] if name == "rope"}}
built = [name for name in sys.argv[1:] if name not in failed]
print(json.dumps({{
    "libraries": dict.fromkeys(built, os.getcwd() + "/lib.so"), "seconds": dict.fromkeys(built, 1.5), "failed": failed
}}))
sys.exit(len(failed))
"""


def test_a_kernel_that_fails_leaves_the_others(run, cache):
    given = cache | {"build_script": HALF, "modules": ["norm", "rope", "sampling"]}
    assert run(flashinfer_cache, check=True, **given)["compiled"] == ["norm", "rope", "sampling"]
    failed = run(flashinfer_cache, **given)["msg"]
    assert failed.startswith("rope could not be compiled, ")
    assert "nvcc: out of registers" in failed
    assert "norm" not in failed
    assert run(flashinfer_cache, check=True, **given)["compiled"] == ["rope"]
    rest = run(flashinfer_cache, **given | {"modules": ["norm", "sampling", "page"]})
    assert (rest["compiled"], rest["seconds"]) == (["page"], {"page": 1.5})
    assert sorted(rest["libraries"]) == ["norm", "page", "sampling"]


@pytest.mark.parametrize(
    ("environment", "words"),
    [({}, "compiled, with MAX_JOBS=1:\nnvcc: out of registers (1 1)"), ({"MAX_JOBS": 7}, "registers (7 1)")],
)
def test_compilers_are_bounded(run, cache, monkeypatch, environment, words):
    monkeypatch.setattr(flashinfer_cache.kernel_builds, "available_memory", lambda _meminfo: 0)
    given = cache | {"build_script": HALF, "modules": ["rope"], "environment": environment}
    assert words in run(flashinfer_cache, **given)["msg"]


@pytest.mark.parametrize(
    ("script", "begin"),
    [
        (HALF.replace("nvcc: out of registers", "nvcc: Killed"), "could not be compiled, with MAX_JOBS=1: the comp"),
        ("import os; os.kill(os.getpid(), 9)", "Nothing was compiled of rope: the comp"),
    ],
    ids=["compiler", "script"],
)
def test_a_compiler_that_ran_out_of_ram_is_told(run, cache, monkeypatch, script, begin):
    monkeypatch.setattr(flashinfer_cache.kernel_builds, "available_memory", lambda _meminfo: 0)
    message = run(flashinfer_cache, **cache | {"build_script": script, "modules": ["rope"]})["msg"]
    assert begin in message.splitlines()[0]
    assert "compiler ran out of RAM, of 1 at a time. Set MAX_JOBS" in message


def test_a_cache_without_kernels_is_a_folder(run, cache, tmp_path):
    """The launch check already needs it."""
    given = cache | {"modules": [], "build_script": "raise SystemExit('not run')"}
    assert run(flashinfer_cache, check=True, **given)["changed"] is True
    assert [run(flashinfer_cache, **given)["changed"] for _run in range(2)] == [True, False]
    assert mode(tmp_path / "cache") == 0o755


def test_kernels_of_another_architecture_are_compiled_again(run, cache, tmp_path):
    run(flashinfer_cache, **cache)
    failed = run(flashinfer_cache, **cache | {"architectures": "9.0a 12.0f"})
    assert f"{tmp_path}/cache/norm.so holds code for [120], not for [90, 120]" in failed["msg"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"build_script": "import sys; print('half'); sys.exit('no compiler')"},
            "compiled of norm:\nhalf\nno compiler",
        ),
        ({"build_script": "print('done')"}, "Nothing was compiled of norm:\ndone"),
        ({"build_script": 'print(\'{"libraries": {"norm": "/nowhere.so"}}\')'}, "/nowhere.so"),
        ({"version": "0.6.12"}, "FlashInfer is 0.6.11, the release table says 0.6.12"),
        ({"release_path": "/nowhere"}, "No complete release lies in /nowhere"),
    ],
)
def test_kernels_that_are_not_as_promised(run, cache, tmp_path, changes, words):
    failed = run(flashinfer_cache, **cache | changes)
    assert failed["failed"] is True
    assert words in failed["msg"]
    assert "exception" not in failed
    assert wheels.read_manifest(str(tmp_path / "cache")) is None


def test_a_missing_service_user_is_told(run, cache, monkeypatch):
    monkeypatch.undo()
    failed = run(flashinfer_cache, **cache | {"user": "no-such-user"})
    assert "no-such-user" in failed["msg"]
    assert "the sglang role makes the user" in failed["msg"]


@pytest.fixture
def plan(tmp_path: Path, cache: dict[str, object]) -> dict[str, Any]:
    (tmp_path / "model").mkdir()
    return {
        "name": "tiny",
        "user": USER,
        "digest": "0123456789ab",
        "release_path": cache["release_path"],
        "model_path": str(tmp_path / "model"),
        "command": [f"{cache['release_path']}/bin/python", "-m", "sglang.launch_server"],
        "arguments": [["--chat-template", "$HOME ~"], ["--port", 30000]],
        "environment": {"CHECK": 1},
    }


def check(tmp_path: Path, plan: dict[str, Any], script: str) -> dict[str, object]:
    return {"plan": plan, "checked": str(tmp_path / "plan.json"), "check_script": script}


def test_the_check_sees_exactly_what_the_unit_will_give(run, plan, tmp_path):
    script = f"import os, sys; open('{tmp_path}/seen', 'w').write(repr([sys.argv[1:], dict(os.environ)]))"
    result = run(launch_check, **check(tmp_path, plan, script))
    assert (result["changed"], result["checked"]) == (False, True)
    arguments, environment = ast.literal_eval((tmp_path / "seen").read_text())
    assert arguments == [plan["model_path"], "--chat-template", "$HOME ~", "--port", "30000"]
    # Nothing of Ansible's own environment; Python itself may add LC_CTYPE.
    systemd = {"LANG": "C.UTF-8", "PATH": units.SEARCH_PATH, "USER": USER, "LOGNAME": USER}
    assert {name: environment[name] for name in environment if name != "LC_CTYPE"} == {"CHECK": "1", **systemd}


def test_the_check_wants_no_key_and_shows_none(run, plan, tmp_path):
    """The file of the key is written later, when nothing can go wrong any more."""
    secrets = "/etc/sglang/tiny/secrets.yml"
    plan |= {"arguments": [["--port", 30000], ["--config", secrets]], "secrets": secrets}
    script = f"import sys; open('{tmp_path}/seen', 'w').write(repr(sys.argv[2:]))"
    run(launch_check, **check(tmp_path, plan, script))
    assert (tmp_path / "seen").read_text() == repr(["--port", "30000", "--api-key", "stand-in"])


def test_an_instance_that_would_not_start_fails_with_the_faults(run, plan, tmp_path):
    failed = run(launch_check, **check(tmp_path, plan, "import sys; print('--pp-size: 3'); sys.exit(1)"))
    assert failed["msg"] == "tiny would not start, so nothing was stopped:\n--pp-size: 3"
    failed = run(launch_check, **check(tmp_path, plan, "raise RuntimeError('broken')"))
    assert "RuntimeError: broken" in failed["msg"]


@pytest.mark.parametrize("content", ["{", "[]", "{}", '"text"', '{"digest": "another"}', None])
def test_a_plan_that_was_not_checked_is_checked(run, plan, tmp_path, content):
    if content is not None:
        (tmp_path / "plan.json").write_text(content)
    assert run(launch_check, **check(tmp_path, plan, ""))["checked"] is True


def test_a_plan_is_checked_once(run, plan, tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert run(launch_check, **check(tmp_path, plan, "raise SystemExit(1)"))["checked"] is False


@pytest.mark.parametrize("missing", ["release_path", "model_path"])
def test_check_mode_checks_nothing_that_is_not_there_yet(run, plan, tmp_path, missing):
    given = check(tmp_path, plan | {missing: "/nowhere"}, "raise SystemExit('not there')")
    assert run(launch_check, check=True, **given)["checked"] is False
    assert run(launch_check, **given)["failed"] is True


# sglang_instance and sglang_ready


@pytest.fixture
def systemd(tmp_path: Path, program) -> Callable[..., Path]:
    """A systemctl that describes a unit so and notes what it is asked, and a journalctl of three lines."""

    def describe(status: int = 0, **properties: object) -> Path:
        shown = {"ActiveState": "active", "SubState": "running", "Result": "success", "MainPID": 0, "NRestarts": 0}
        lines = "\n".join(f"{name}={value}" for name, value in (shown | properties).items())
        program(
            "systemctl", f'echo "$1 $2 $3" >> {tmp_path}/asked\ncat <<END\n{lines}\nEND\n[ $1 = show ] || exit {status}'
        )
        program("journalctl", "printf 'one\\ntwo\\nthree\\n'")
        return tmp_path / "asked"

    return describe


STARTED = ["daemon-reload", "reset-failed sglang-tiny.service", "restart --no-block sglang-tiny.service"]
STOPPED = ["daemon-reload", "stop --no-block sglang-tiny.service", "reset-failed sglang-tiny.service"]


def commands(asked: Path) -> list[str]:
    """What systemctl was asked that changes anything."""
    return [line.strip() for line in asked.read_text().splitlines() if not line.startswith("show ")]


def test_an_instance_that_does_not_run_is_started(run, systemd):
    asked = systemd(ActiveState="inactive")
    result = run(sglang_instance, check=True, name="tiny", digest="0123456789ab")
    assert (result["changed"], result["active"], result["digest"]) == (True, "inactive", "")
    assert commands(asked) == []
    assert run(sglang_instance, name="tiny", digest="0123456789ab")["changed"] is True
    assert commands(asked) == STARTED


def test_an_instance_that_runs_from_its_plan_is_left_alone(run, serving, tmp_path):
    serving()
    assert run(sglang_instance, name="tiny", digest="0123456789ab")["changed"] is False
    assert commands(tmp_path / "asked") == []
    assert run(sglang_instance, name="tiny", digest="of another plan")["changed"] is True
    assert commands(tmp_path / "asked") == STARTED


def test_a_systemd_that_refuses_is_quoted(run, systemd):
    systemd(status=4)
    failed = run(sglang_instance, name="tiny", digest="x")
    assert failed["msg"].startswith("systemctl daemon-reload failed with 4")


class Engine(http.server.BaseHTTPRequestHandler):
    """Healthy; completes as many tokens as the server's attribute says."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            self.send_error(401)
            return
        answer = {"choices": [{"text": " fox"}], "usage": {"completion_tokens": self.server.tokens}}
        self.do_GET()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_arguments: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def engine():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.tokens, server.key = 16, ""
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    yield server
    server.shutdown()
    server.server_close()


def ready(port: int, **changes: object) -> dict[str, object]:
    given = {"name": "tiny", "url": f"http://127.0.0.1:{port}", "model": "tiny", "prompt": "The", "poll": 0}
    return given | {"digest": "0123456789ab"} | changes


@pytest.fixture
def serving(systemd, tmp_path, monkeypatch) -> Callable[..., None]:
    """An active unit whose main process carries the digest of ``ready``, started after the unit was written."""
    process = subprocess.Popen(["sleep", "60"], env={"SGLANG_PLAN_DIGEST": "0123456789ab", "PATH": os.environ["PATH"]})
    monkeypatch.setattr(health, "UNIT_FOLDER", tmp_path)
    (tmp_path / "sglang-tiny.service").touch()

    def serve(**properties: object) -> None:
        started = datetime.datetime.now(datetime.UTC).strftime("%a %Y-%m-%d %H:%M:%S.%f UTC")
        systemd(**{"MainPID": process.pid, "ExecMainStartTimestamp": started} | properties)

    yield serve
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("properties", "changes"),
    [({"ActiveState": "activating"}, {}), ({"ActiveState": "deactivating"}, {}), ({}, {"digest": "of another plan"})],
    ids=["not started", "stopping", "predecessor"],
)
def test_an_engine_that_answers_for_another_is_not_ready(run, serving, engine, properties, changes):
    serving(**properties)
    result = run(sglang_ready, **ready(engine.server_port, **changes))
    assert (result["ready"], result["over"]) == (False, False)


def test_an_instance_that_answers_is_ready(run, serving, engine):
    serving()
    result = run(sglang_ready, **ready(engine.server_port))
    assert (result["changed"], result["ready"], result["over"]) == (False, True, False)
    assert (result["text"], result["tokens"]) == (" fox", 16)


@pytest.fixture
def keyed(engine, tmp_path) -> Path:
    """The engine wants a key; the file on the node that holds it."""
    engine.key = 'a"b$c%d'
    (tmp_path / "secrets.yml").write_text(credentials.key_file(engine.key))
    return tmp_path / "secrets.yml"


def test_a_key_is_read_on_the_node_and_not_returned(run, serving, engine, keyed):
    serving()
    result = run(sglang_ready, **ready(engine.server_port, secrets=str(keyed)))
    assert result["text"] == " fox"
    assert "b$c" not in json.dumps(result)
    failed = run(sglang_ready, **ready(engine.server_port))
    assert "does not complete a text: HTTP Error 401" in failed["msg"]


def test_a_file_that_lost_its_key_is_told(run, serving, engine, keyed):
    keyed.write_text("{}")
    serving()
    failed = run(sglang_ready, **ready(engine.server_port, secrets=str(keyed)))
    assert f"{keyed} holds no API key" in failed["msg"]


def test_a_changed_key_starts_the_instance_once(run, serving, keyed, tmp_path):
    given = {"name": "tiny", "digest": "0123456789ab", "secrets": str(keyed)}
    serving()
    assert run(sglang_instance, **given)["changed"] is False
    later = datetime.datetime.now().timestamp() + 60
    os.utime(keyed, (later, later))
    assert run(sglang_instance, **given)["changed"] is True
    assert commands(tmp_path / "asked") == STARTED
    # Where the plan has no key, what another left of its own says nothing.
    assert run(sglang_instance, **given | {"secrets": ""})["changed"] is False


def test_an_instance_that_answers_wrongly_fails(run, serving, engine):
    serving()
    engine.tokens = 3
    failed = run(sglang_ready, **ready(engine.server_port))
    assert failed["failed"] is True
    assert "is healthy and does not complete a text" in failed["msg"]


@pytest.mark.parametrize(
    ("properties", "over"),
    [
        ({"ActiveState": "activating"}, False),
        ({"ActiveState": "failed", "Result": "exit-code"}, True),
        ({"ActiveState": "inactive", "Job": 79}, False),
    ],
)
def test_an_instance_that_does_not_answer_is_waited_for_until_systemd_gives_up(run, systemd, properties, over):
    systemd(**properties)
    result = run(sglang_ready, **ready(9))
    assert (result["ready"], result["over"], result["journal"]) == (False, over, ["one", "two", "three"])
    assert result["state"].startswith(properties["ActiveState"])


def test_check_mode_asks_nobody(run, systemd):
    asked = systemd()
    assert run(sglang_ready, check=True, **ready(9))["ready"] is False
    assert not asked.exists()


@pytest.mark.parametrize(
    ("properties", "died"),
    [
        ({"SubState": "auto-restart"}, True),
        ({"SubState": "auto-restart", "Job": 79}, False),
        ({"SubState": "start-post"}, True),
        ({"SubState": "start-post", "MainPID": 812}, False),
    ],
)
def test_an_engine_that_died_is_told_while_systemd_waits(run, systemd, properties, died):
    systemd(ActiveState="activating", **properties)
    result = run(sglang_ready, **ready(9) | {"poll": 60 if died else 0})
    assert (result["died"], result["over"], result["ready"]) == (died, False, False)


# sglang_activation


@pytest.fixture
def want(tmp_path, monkeypatch, engine) -> Callable[[str, str], None]:
    """Write plan and unit of the instance tiny for a release, which is installed; the engine is where it listens."""
    monkeypatch.setattr(health, "UNIT_FOLDER", tmp_path)
    monkeypatch.setattr(activations, "FOLDER", tmp_path / "etc")
    (tmp_path / "model").mkdir()

    def write(release: str, digest: str, secrets: str = "") -> None:
        wheels.write_manifest(str(tmp_path / release), {"version": release})
        plan = {
            "digest": digest,
            "url": f"http://127.0.0.1:{engine.server_port}",
            "served_name": "tiny",
            "release_path": str(tmp_path / release),
            "cuda_home": str(tmp_path),
            "model_path": str(tmp_path / "model"),
            "secrets": secrets,
            "start_timeout": 1,
            "stop_timeout": 1,
        }
        wheels.write_atomically(tmp_path / "etc/tiny/plan.json", json.dumps(plan))
        wheels.write_atomically(tmp_path / "sglang-tiny.service", f"unit of {release}")

    return write


def lies(tmp_path: Path, slot: str = "") -> str:
    """The digest that lies on the node."""
    path = tmp_path / "etc/tiny" / slot / "plan.json"
    return json.loads(path.read_text())["digest"] if path.exists() else "-"


def test_what_was_proven_is_recorded_once(run, want, systemd, tmp_path):
    systemd()
    want("A", "a")
    given = {"name": "tiny", "state": "recorded", "digest": "a"}
    assert run(sglang_activation, check=True, **given)["changed"] is True
    assert lies(tmp_path, "good") == "-"
    assert [run(sglang_activation, **given)["changed"] for _run in range(2)] == [True, False]
    want("B", "b")
    assert run(sglang_activation, check=True, **given | {"digest": "not written yet"})["changed"] is True
    assert "is b, and a was proven" in run(sglang_activation, **given)["msg"]
    run(sglang_activation, **given | {"digest": "b"})
    assert (lies(tmp_path, "good"), lies(tmp_path, "previous")) == ("b", "a")


def test_what_serves_unrecorded_is_kept_before_a_switch(run, want, serving, tmp_path):
    """As after a run that was killed between the proof and the record."""
    want("A", "0123456789ab")
    serving()
    given = {"name": "tiny", "state": "kept"}
    assert run(sglang_activation, check=True, **given)["changed"] is True
    assert lies(tmp_path, "good") == "-"
    result = run(sglang_activation, **given)
    assert (result["changed"], result["running"], lies(tmp_path, "good")) == (True, True, "0123456789ab")
    assert run(sglang_activation, **given)["changed"] is False


def test_what_serves_with_a_key_is_kept(run, want, serving, keyed):
    want("A", "0123456789ab", str(keyed))
    serving()
    assert run(sglang_activation, name="tiny", state="kept")["changed"] is True


def test_what_runs_with_an_older_key_is_not_kept(run, want, serving, keyed):
    want("A", "0123456789ab", str(keyed))
    serving()
    later = datetime.datetime.now().timestamp() + 60
    os.utime(keyed, (later, later))
    assert run(sglang_activation, name="tiny", state="kept")["changed"] is False


@pytest.mark.parametrize("why", ["loads", "of another plan", "completes nothing"])
def test_what_does_not_serve_is_not_kept(run, want, serving, *, engine, tmp_path, why):
    """As after a run that was killed between the switch and the proof."""
    want("B", "another" if why == "of another plan" else "0123456789ab")
    serving(**({"ActiveState": "activating"} if why == "loads" else {}))
    engine.tokens = 3 if why == "completes nothing" else 16
    assert run(sglang_activation, name="tiny", state="kept")["changed"] is False
    assert lies(tmp_path, "good") == "-"


@pytest.mark.parametrize(
    ("properties", "running"),
    [
        ({"ActiveState": "inactive"}, False),
        ({"ActiveState": "inactive", "Job": 79}, True),
        ({"ActiveState": "failed"}, True),
        ({"ActiveState": "activating"}, True),
    ],
)
def test_an_instance_that_somebody_stopped_is_told_apart(run, want, systemd, properties, running):
    systemd(**properties)
    assert run(sglang_activation, name="tiny", state="kept")["running"] is running


@pytest.fixture
def switched(run, want, systemd, tmp_path) -> Path:
    """A is proven, B is wanted and failed; what systemctl is asked from here on."""
    systemd()
    want("A", "a")
    run(sglang_activation, name="tiny", state="recorded", digest="a")
    want("B", "b")
    return systemd(ActiveState="failed")


@pytest.mark.parametrize(("running", "asked_for"), [(True, STARTED), (False, STOPPED)])
def test_what_was_proven_is_put_back_after_a_failure(run, switched, tmp_path, running, asked_for):
    given = {"name": "tiny", "state": "reverted", "running": running}
    assert run(sglang_activation, check=True, **given)["restored"] is True
    assert (lies(tmp_path), commands(switched)) == ("b", [])
    result = run(sglang_activation, **given)
    assert (result["changed"], result["restored"], result["running"]) == (True, True, running)
    assert result["plan"]["digest"] == lies(tmp_path) == "a"
    assert (tmp_path / "sglang-tiny.service").read_text() == "unit of A"
    assert "activation.back: A (plan a) was put back" in result["msg"]
    assert "unit of B" in result["diff"][1]["before"]
    assert commands(switched)[-3:] == asked_for


def test_an_instance_that_never_left_its_plan_is_not_restarted(run, want, serving, tmp_path):
    """The switch failed before the restart, as on a full disk."""
    want("A", "0123456789ab")
    serving()
    run(sglang_activation, name="tiny", state="recorded", digest="0123456789ab")
    later = datetime.datetime.now().timestamp() + 60
    want("B", "b")
    os.utime(tmp_path / "sglang-tiny.service", (later, later))
    assert run(sglang_activation, name="tiny", state="reverted")["restored"] is True
    assert lies(tmp_path) == "0123456789ab"
    assert commands(tmp_path / "asked") == ["daemon-reload"]


def test_an_instance_of_another_unit_with_the_same_plan_is_restarted(run, want, serving, tmp_path):
    want("A", "0123456789ab")
    serving()
    run(sglang_activation, name="tiny", state="recorded", digest="0123456789ab")
    wheels.write_atomically(tmp_path / "sglang-tiny.service", "another unit")
    os.utime(tmp_path / "sglang-tiny.service", (0, 0))
    assert run(sglang_activation, name="tiny", state="reverted")["restored"] is True
    assert commands(tmp_path / "asked")[-3:] == STARTED


@pytest.mark.parametrize("gone", ["nothing was proven", "release"])
def test_an_instance_without_anything_to_put_back_is_stopped(run, want, systemd, switched, *, tmp_path, gone):
    if gone == "release":
        (tmp_path / "A/manifest.json").unlink()
    else:
        shutil.rmtree(tmp_path / "etc/tiny/good")
    result = run(sglang_activation, name="tiny", state="reverted")
    assert (result["changed"], result["restored"], result["running"], lies(tmp_path)) == (True, False, False, "b")
    assert [finding["id"] for finding in result["findings"]][-1] == "activation.stopped"
    assert ("activation.release_gone" in result["msg"]) == (gone == "release")
    assert commands(switched) == STOPPED
    systemd(ActiveState="inactive")
    assert run(sglang_activation, name="tiny", state="reverted")["changed"] is False


def test_a_failure_of_what_is_proven_puts_nothing_back(run, switched):
    """An engine that dies by itself is no reason for another release."""
    run(sglang_activation, name="tiny", state="recorded", digest="b")
    result = run(sglang_activation, name="tiny", state="reverted")
    assert (result["changed"], result["restored"], result["running"]) == (False, False, False)
    assert "activation.proven" in result["msg"]
    assert commands(switched) == []


def test_going_back_on_request_and_back_again(run, switched, tmp_path):
    run(sglang_activation, name="tiny", state="recorded", digest="b")
    for expected in ("a", "b"):
        assert run(sglang_activation, name="tiny", state="former")["plan"]["digest"] == lies(tmp_path) == expected
        run(sglang_activation, name="tiny", state="recorded", digest=expected)
    assert commands(switched) == ["daemon-reload", *STARTED] * 2


def test_going_back_to_nothing_changes_nothing(run, want, systemd, switched, tmp_path):
    assert "activation.none" in run(sglang_activation, name="another", state="former")["msg"]
    (tmp_path / "A/manifest.json").unlink()
    failed = run(sglang_activation, name="tiny", state="former")
    assert failed["msg"].startswith("tiny cannot go back, nothing was changed:\nerror: activation.release_gone")
    assert (lies(tmp_path), commands(switched)) == ("b", [])


# tiny_model and driver_stub


@pytest.fixture
def drawn_once(monkeypatch):
    """Drawing the weights takes half a second."""
    monkeypatch.setattr(tiny_llama, "files", functools.cache(tiny_llama.files))


def test_a_model_is_made_once(run, tmp_path, drawn_once):
    folder = tmp_path / "models" / "tiny"
    assert run(tiny_model, check=True, path=str(folder))["changed"] is True
    assert not folder.exists()
    assert run(tiny_model, path=str(folder)) == run(tiny_model, path=str(folder)) | {"changed": True}
    assert [mode(path) for path in (folder.parent, folder, folder / "config.json")] == [0o755, 0o755, 0o644]
    assert run(tiny_model, path=str(folder), seed=1)["changed"] is True


def test_a_model_that_cannot_be_written_is_told(run, tmp_path, drawn_once):
    (tmp_path / "file").touch()
    failed = run(tiny_model, path=str(tmp_path / "file" / "tiny"))
    assert str(tmp_path / "file") in failed["msg"]
    assert "exception" not in failed


def test_a_stub_is_made_once_and_only_without_a_driver(run, tmp_path, monkeypatch):
    monkeypatch.setattr(stub, "driver", lambda: "")
    monkeypatch.setattr(stub, "symbols", lambda _packages: ["cuInit"])
    monkeypatch.setattr(stub, "compile_library", lambda source, path, _soname: path.write_text(source))
    given = {"release_path": str(tmp_path), "python_version": "3.11", "path": str(tmp_path / "lib")}
    assert run(driver_stub, check=True, **given)["changed"] is True
    assert not (tmp_path / "lib").exists()
    assert run(driver_stub, **given)["changed"] is True
    assert (mode(tmp_path / "lib"), mode(tmp_path / "lib/libcuda.so.1")) == (0o755, 0o644)
    assert run(driver_stub, **given)["changed"] is False
    monkeypatch.setattr(stub, "driver", lambda: "/dev/nvidiactl")
    failed = run(driver_stub, **given)
    assert "cpu_engine.driver" in failed["msg"]
    assert failed["failed"] is True


def test_a_stub_without_a_release_is_told(run, tmp_path, monkeypatch):
    monkeypatch.setattr(stub, "driver", lambda: "")
    given = {"release_path": "/nowhere", "python_version": "3.11", "path": str(tmp_path / "lib")}
    assert "nm" in run(driver_stub, **given)["msg"]
