# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The shipped patches on the published files of every release: ``SGLANG_SOURCES`` names the folder of the sources.

That folder holds ``<version>/sglang``; nothing in it is changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible_collections.inference.sglang.plugins.module_utils import patches
from ansible_collections.inference.sglang.plugins.module_utils.patches import Patch

SHIPPED = Path(__file__).parents[2] / "roles/sglang/files/patches"
VERSIONS = (
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
)
DEFINITIONS = {path.stem: patches.from_mapping(yaml.safe_load(path.read_text())) for path in SHIPPED.glob("*.yml")}
# The first and the last release that each patch changes; it changes every one of VERSIONS between them.
SPANS = {
    "activation-gcc12": ("0.5.11", "0.5.12.post1"),  # 0.5.10 has not the kernel
    "api-key-log": ("0.5.10", "0.5.23"),
    "pp-abort": ("0.5.10", "0.5.15.post1"),
    "swa-start-layer": ("0.5.10", "0.5.23"),
    "triton-layer-probe": ("0.5.10", "0.5.17"),
}
AFFECTED = [
    (id, version)
    for id, (first, last) in SPANS.items()
    for version in VERSIONS[VERSIONS.index(first) : VERSIONS.index(last) + 1]
]
FIXED = [(id, version) for id, (_first, last) in SPANS.items() for version in VERSIONS[VERSIONS.index(last) + 1 :]]

SLOTS = '(*getattr(self, "running_mbs", ()), *getattr(self, "mbs", ()))'
START = "model_runner.token_to_kv_pool.start_layer"
KERNEL = "activation_kernel<ActivationKind::"
POINTER = "-> decltype(&act_and_mul_kernel<T, ActivationKind::kSiLU, kUsePDL, kFilterExpert>) {"
PROBE = f"model_runner.token_to_kv_pool.get_value_buffer(\n                {START}\n            ).shape[-1]"
# The text of the right fix, what a wrong one has in its place, and what its probe says to that.
WRONG = {
    "activation-gcc12": (
        (POINTER, POINTER.replace("&", ""), "function returning a function"),
        (POINTER, "-> const void* {", "no match for call"),
        (POINTER, "{", "inconsistent deduction for auto"),
        (f"return {KERNEL}kSiLU, kFilterExpert>", f"return {KERNEL}kSiLU, false>", "left out"),
        (f"return {KERNEL}kGELU, ", f"return {KERNEL}kGELUTanh, ", "gelu gives"),
    ),
    "triton-layer-probe": (
        (PROBE, PROBE.replace(START, "1"), "IndexError"),
        (PROBE, "model_runner.token_to_kv_pool.v_head_dim", "AttributeError"),
        (PROBE, "model_runner.model_config.v_head_dim", "gives 128"),
    ),
    "swa-start-layer": (
        ("min([", "max([", "is not the first of the layers"),
        ("*full_attention_layer_ids, *swa", "*full", "is not the first of the layers"),
        (", default=0", "", "ValueError"),
        ("wait_until(layer_id", "wait_until(1 + layer_id", "hierarchical cache"),
    ),
    "api-key-log": (
        ('("api_key", "admin_api_key", "ssl_keyfile_password")', '("api_key",)', "shows admin_api_key"),
        ('("api_key", "admin_api_key", "ssl_keyfile_password")', "()", "shows api_key, admin_api_key, ssl_key"),
        ("value and name in secrets", "name in secrets", "does not show that api_key"),
        ("value and name in secrets", "value", "does not show host"),
    ),
    "pp-abort": (
        ("reqs = reqs + slot.reqs", "reqs += slot.reqs", "which requests a micro-batch has"),
        (SLOTS, 'getattr(self, "running_mbs", ())', "an abort of three ends none"),
        (SLOTS, 'getattr(self, "mbs", ())', "an abort of zero ends none"),
        ('getattr(self, "running_mbs", ())', "self.running_mbs", "AttributeError"),
        ("if slot is not None:", "if True:", "AttributeError"),
    ),
}


@pytest.fixture(scope="session")
def sources() -> Path:
    folder = os.environ.get("SGLANG_SOURCES")
    if not folder:
        pytest.fail("SGLANG_SOURCES is to name the folder that holds <version>/sglang")
    return Path(folder)


@pytest.fixture
def install(sources: Path, tmp_path: Path) -> Callable[[Patch, str], Path]:
    """A copy of the file that a patch changes in a release, where the release has it; its path."""

    def copy(patch: Patch, version: str) -> Path:
        file = patch.variant(version).file
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if (published := sources / version / file).exists():
            path.write_bytes(published.read_bytes())
        return path

    return copy


def converge(patch: Patch, folder: Path, version: str, want: patches.Want = "present") -> patches.Report:
    return patches.converge(patch, folder, version, want, python=Path(sys.executable))


def probe(patch: Patch, path: Path, version: str) -> patches.ProbeResult:
    return patches.run_probe(patch.variant(version).probe, Path(sys.executable), path, version)


def compiler() -> str:
    """The major version of g++."""
    done = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True, check=True)
    return done.stdout.strip().partition(".")[0]


def test_every_shipped_patch_is_tested_here() -> None:
    assert set(DEFINITIONS) == set(SPANS) == set(WRONG)
    for id, definition in DEFINITIONS.items():
        assert {(id, version) for version in definition.releases} == {pair for pair in AFFECTED if pair[0] == id}


@pytest.mark.parametrize(("id", "version"), AFFECTED)
def test_applied_proven_already_and_back_to_the_published_bytes(id, version, install, tmp_path) -> None:
    patch = DEFINITIONS[id]
    path = install(patch, version)
    published = path.read_bytes()
    unpatched = probe(patch, path, version)
    if id != "activation-gcc12" or compiler() == "12":  # the fault is the compiler's
        assert unpatched.rc == 1, unpatched.output
    assert "Traceback" not in unpatched.output

    first = converge(patch, tmp_path, version)
    assert (first.name, first.findings) == ("applied", ())
    assert first.probe is not None
    assert first.probe.rc == 0
    if path.suffix == ".py":
        compile(path.read_bytes(), path, "exec")
    again = converge(patch, tmp_path, version)
    assert (again.name, again.changed) == ("already", False)

    assert converge(patch, tmp_path, version, "absent").name == "restored"
    assert path.read_bytes() == published
    assert converge(patch, tmp_path, version, "absent").name == "already"


@pytest.mark.parametrize(("id", "version"), FIXED)
def test_not_needed_where_upstream_has_the_change(id, version, install, tmp_path) -> None:
    patch = DEFINITIONS[id]
    path = install(patch, version)
    published = path.read_bytes() if path.exists() else None
    assert converge(patch, tmp_path, version).name == "not_needed"
    assert (path.read_bytes() if path.exists() else None) == published
    if id == "activation-gcc12":
        assert path.exists() == (version not in VERSIONS[VERSIONS.index("0.5.17") :])  # where it is another file
        assert published is None or probe(patch, path, version).rc == 0
    elif id != "pp-abort" or version in ("0.5.16", "0.5.17", "0.5.18"):  # later, abort_request asks another method
        assert probe(patch, path, version).rc == 0


@pytest.mark.parametrize(("id", "version"), AFFECTED)
def test_a_wrong_fix_is_refused(id, version, install, tmp_path) -> None:
    patch = DEFINITIONS[id]
    path = install(patch, version)
    assert converge(patch, tmp_path, version).name == "applied"
    right = path.read_text()
    refused = 0
    for text, wrong, words in WRONG[id]:
        if text not in right:
            assert text.startswith("wait_until")
            continue
        path.write_text(right.replace(text, wrong))
        result = probe(patch, path, version)
        assert result.rc == 1, (wrong, result.output)
        assert words in result.output, (wrong, result.output)
        refused += 1
    assert refused >= len(WRONG[id]) - 1


# What the two files give together: the backend's own expression on the pool's own class, on a stage that starts at 16.
TOGETHER = """
import ast, sys
from types import SimpleNamespace

def take(path, wanted):
    with open(path, "rb") as stream:
        return [node for node in ast.walk(ast.parse(stream.read())) if wanted(node)]

(pool,) = take(sys.argv[1], lambda node: isinstance(node, ast.ClassDef) and node.name == "SWAKVPool")
pool.bases = []
module = ast.parse("from __future__ import annotations")
module.body.append(pool)
class Pool:
    post_capture_active = False
    def __init__(self, layer_num, **options): pass
    def get_value_buffer(self, layer): return SimpleNamespace(shape=(64, 8, 64))
    def get_kv_size_bytes(self): return 0, 0
other = type("Other", (), {})
names = {"GB": 1, "MHATokenToKVPool": Pool, "MLATokenToKVPool": other, "DSATokenToKVPool": other}
names |= {"maybe_init_custom_mem_pool": lambda **_: (0, 0, 0), "logger": SimpleNamespace(info=print)}
exec(compile(module, "pool", "exec"), names)
given = dict.fromkeys(("size", "size_swa", "page_size", "head_num", "head_dim"), 1) | {"dtype": None, "device": "cpu"}
given |= {"swa_attention_layer_ids": [16, 18], "full_attention_layer_ids": [17, 19]}
if "enable_kvcache_transpose" in ast.unparse(pool): given["enable_kvcache_transpose"] = False
made = names["SWAKVPool"](**given)
values = take(sys.argv[2], lambda node: isinstance(node, ast.Assign) and "get_value_buffer" in ast.unparse(node.value)
              and ast.unparse(node.targets[0]) == "self.v_head_dim")
(value,) = values
print(eval(ast.unparse(value.value), {"model_runner": SimpleNamespace(token_to_kv_pool=made)}))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pool_needs_the_patch_of_the_backend_where_it_says_so(version, install, tmp_path) -> None:
    pool, backend = DEFINITIONS["swa-start-layer"], DEFINITIONS["triton-layer-probe"]
    assert pool.requires == (backend.id,)
    paths = [str(install(patch, version)) for patch in (pool, backend)]
    site = tmp_path

    def first_layer() -> str:
        command = [sys.executable, "-I", "-", *paths]
        done = subprocess.run(command, input=TOGETHER, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip().splitlines()[-1]

    assert first_layer() == "KeyError: 0"
    assert converge(pool, site, version).name == "applied"
    affected = version in backend.releases
    assert first_layer() == ("KeyError: 0" if affected else "64")
    assert converge(backend, site, version).name == ("applied" if affected else "not_needed")
    assert first_layer() == "64"
