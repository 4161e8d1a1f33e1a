# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lies on the node: toolkit, release, patches, kernels, model."""

from __future__ import annotations

import hashlib
import json


def test_toolkit_compiles_for_the_architecture(host, plan, toolkit, release, fact):
    python = release["python"]
    cuobjdump = f"{plan['release_path']}/lib/python{python}/site-packages/triton/backends/nvidia/bin/cuobjdump"
    assert toolkit["architectures"]
    for name, architectures in toolkit["architectures"].items():
        listed = host.check_output(f"{cuobjdump} --list-elf {toolkit['path']}/probe/{name}")
        assert [held for held in architectures if f"sm_{held}.cubin" not in listed] == []
    version = host.check_output(f"{plan['cuda_home']}/bin/nvcc --version")
    by = "" if toolkit["method"] == "wheels" else f" ({toolkit['method']})"
    fact("CUDA toolkit", f"{version.splitlines()[-2]}{by}, proof holds {', '.join(toolkit['architectures'])}")
    assert f"V{toolkit['nvcc']}" in version


def test_toolkit_is_a_real_folder(host, plan):
    """No link, such as /usr/local/cuda, that a package may turn to another version."""
    assert host.check_output(f"readlink -f {plan['cuda_home']}") == plan["cuda_home"]


def test_release_is_what_its_manifest_says(host, plan, release, fact):
    script = (
        "import importlib.metadata as m, json, torch;"
        "print(json.dumps([torch.version.cuda, m.version('sglang'), m.version('flashinfer-python')]))"
    )
    cuda, sglang, flashinfer = json.loads(host.check_output(f'{plan["release_path"]}/bin/python -c "{script}"'))
    assert cuda == release["torch_cuda"]
    assert cuda.startswith("13.")
    assert sglang == release["version"]
    assert flashinfer == release["versions"]["flashinfer-python"]
    fact("SGLang", f"{sglang}, PyTorch {release['versions']['torch']} for CUDA {cuda}, {release['flags']} flags")
    fact("release", plan["release_path"].rpartition("/")[2])


def test_patched_files_are_as_patched(host, release, fact):
    for patch in release["patches"]:
        fact("patch", f"{patch['id']}: {patch['outcome']}")
        if patch["outcome"] != "not_needed":
            assert hashlib.sha256(host.file(patch["file"]).content).hexdigest() == patch["sha256"]


def test_no_stale_flashinfer_companions(host, plan, release):
    packages = f"{plan['release_path']}/lib/python{release['python']}/site-packages"
    version = release["versions"]["flashinfer-python"]
    found = host.run(f"ls -d {packages}/flashinfer_cubin-* {packages}/flashinfer_jit_cache-*").stdout.split()
    assert [name for name in found if version not in name] == []


def test_kernels_are_compiled_ahead(host, plan, fact):
    cache = json.loads(host.file(f"{plan['jit_cache']}/manifest.json").content_string)
    assert cache["libraries"]
    for name, library in cache["libraries"].items():
        assert host.file(library["path"]).is_file
        assert host.file(library["path"]).user == plan["user"]
        fact("FlashInfer", f"{name} compiled for {library['architectures']}")


def test_release_belongs_to_root_and_is_not_writable(host, plan):
    release = host.file(plan["release_path"])
    assert release.user == "root"
    assert release.mode & 0o022 == 0


def test_model_is_readable_by_the_service_user(host, plan):
    model = plan["model_path"]
    as_user = f"setpriv --reuid {plan['user']} --regid {plan['user']} --init-groups"
    unreadable = host.run(f"cd / && {as_user} find {model} ! -readable")
    assert unreadable.rc == 0
    assert unreadable.stdout == ""
