# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The toolkit's folder: names to link against, and the proof by a compiler that is played by a script."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import toolkits
from ansible_collections.inference.sglang.plugins.module_utils.wheels import InstallError

# Writes what the test laid beside it as the binary, and tells the environment that it was given.
NVCC = """\
#!/bin/sh
here=$(dirname "$0")
env > "$here/environment"
echo "$@" > "$here/arguments"
[ -f "$here/binary" ] || { echo "nvcc fatal: Unsupported gpu architecture" >&2; exit 1; }
cp "$here/binary" "$4"
"""


def fat_binary(architecture):
    entry = toolkits.cubins._ENTRY.pack(
        toolkits.cubins._ELF, 0, toolkits.cubins._ENTRY.size, 0, 0, 0, 0, 0, architecture
    )
    return toolkits.cubins._FATBIN.pack(0xBA55ED50, 1, toolkits.cubins._FATBIN.size, len(entry)) + entry


@pytest.fixture
def toolkit(tmp_path):
    """A toolkit's folder as the wheels leave it."""
    library = tmp_path / "nvidia/cu13/lib"
    library.mkdir(parents=True)
    for name in ("libcudart.so.13", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libcudadevrt.a"):
        (library / name).write_text(name)
    (tmp_path / "nvidia/cu13/bin").mkdir()
    (tmp_path / "nvidia/cu13/bin/nvcc").write_text(NVCC)
    (tmp_path / "nvidia/cu13/bin/nvcc").chmod(0o755)
    return tmp_path


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(toolkits, "compile_library", lambda _source, path, soname: path.write_text(soname))


def test_link_names_are_added(toolkit, no_compiler):
    toolkits.add_link_names(str(toolkit))
    home = toolkit / "nvidia/cu13"
    assert (home / "lib64/libcudart.so").read_text() == "libcudart.so.13"
    assert (home / "lib/libnvrtc.so").readlink() == Path("libnvrtc.so.13")
    assert (home / "lib/libnvrtc-builtins.so").read_text() == "libnvrtc-builtins.so.13.0"
    assert not (home / "lib/libcudadevrt.so").exists()
    assert (home / "lib/stubs/libcuda.so").read_text() == "libcuda.so.1"


def test_a_dangling_link_is_repaired_and_a_good_one_left_alone(toolkit, no_compiler):
    library = toolkit / "nvidia/cu13/lib"
    (library / "libcudart.so").symlink_to("libcudart.so.12")
    (library / "libnvrtc.so").write_text("of the wheel itself")
    toolkits.add_link_names(str(toolkit))
    toolkits.add_link_names(str(toolkit))
    assert (library / "libcudart.so").read_text() == "libcudart.so.13"
    assert (library / "libnvrtc.so").read_text() == "of the wheel itself"


def test_the_proof_is_compiled_for_the_architecture(toolkit, monkeypatch):
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--of-the-caller")
    (toolkit / "nvidia/cu13/bin/binary").write_bytes(fat_binary(120))
    assert toolkits.compile_probe(str(toolkit), "120f") == {120}
    arguments = (toolkit / "nvidia/cu13/bin/arguments").read_text().split()
    assert arguments[0] == "-gencode=arch=compute_120f,code=sm_120f"
    assert "cub/cub.cuh" in Path(arguments[1]).read_text()
    environment = (toolkit / "nvidia/cu13/bin/environment").read_text()
    assert f"CUDA_HOME={toolkit}/nvidia/cu13\n" in environment
    assert f"PATH={toolkit}/nvidia/cu13/bin:" in environment
    assert "NVCC_APPEND_FLAGS" not in environment


def test_a_binary_for_another_architecture_is_no_proof(toolkit):
    (toolkit / "nvidia/cu13/bin/binary").write_bytes(fat_binary(90))
    with pytest.raises(InstallError, match=r"holds code for \[90\], not for 120"):
        toolkits.compile_probe(str(toolkit), "120f")
    (toolkit / "nvidia/cu13/bin/binary").write_bytes(b"")
    with pytest.raises(InstallError, match="no architecture"):
        toolkits.compile_probe(str(toolkit), "120f")


def test_a_failing_compiler_is_quoted(toolkit):
    with pytest.raises(InstallError, match=r"could not compile .*probe\.cu for 999:\nnvcc fatal: Unsupported"):
        toolkits.compile_probe(str(toolkit), "999")
    (toolkit / "nvidia/cu13/bin/nvcc").unlink()
    with pytest.raises(InstallError, match=r"nvcc is not on the node$"):
        toolkits.compile_probe(str(toolkit), "120f")


def test_a_library_carries_its_name(tmp_path):
    toolkits.compile_library("int answer(void) { return 42; }\n", tmp_path / "lib.so", "libanswer.so.1")
    assert b"libanswer.so.1" in (tmp_path / "lib.so").read_bytes()
    with pytest.raises(InstallError, match="gcc could not make"):
        toolkits.compile_library("no C", tmp_path / "other.so", "libother.so.1")


def test_a_missing_compiler_names_the_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match="gcc is not on the node: add its package to uv_packages"):
        toolkits.compile_library("", tmp_path / "lib.so", "lib.so.1")


def test_words_of_a_tool_in_another_encoding_are_read():
    with pytest.raises(InstallError, match=r"failed:\n.+"):
        toolkits.run_tool(["sh", "-c", r"printf '\377' >&2; exit 1"], "failed")
    assert toolkits.run_tool(["cat"], "failed", source="given") == "given"
