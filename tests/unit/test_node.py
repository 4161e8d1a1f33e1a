# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Facts read from small trees that stand for a node."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import node
from ansible_collections.inference.sglang.plugins.module_utils.settings import NodeSettings

STRANGER = node.Account("sglang", 54321, frozenset({54321}))


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tcp(address: str, port: int, state: str, inode: int) -> str:
    return f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0\n"


@pytest.fixture
def root(tmp_path):
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def model(root):
    write(root / "srv/models/tiny/config.json", "{}").chmod(0o644)
    write(root / "srv/models/tiny/model.safetensors").chmod(0o644)
    return root / "srv/models/tiny"


def test_os_release_is_unquoted(root):
    write(root / "etc/os-release", '# a comment\nID=ubuntu\nVERSION_ID="24.04"\n')
    assert node.os_release(root) == {"ID": "ubuntu", "VERSION_ID": "24.04"}


def test_only_nvidia_display_controllers_are_gpus(root):
    for address, vendor, kind, device in (
        ("0000:01:00.0", "0x10de", "0x030200", "0x2bb5"),
        ("0000:01:00.1", "0x10de", "0x040300", "0x22e8"),  # the card's audio function
        ("0000:02:00.0", "0x1002", "0x030000", "0x73bf"),
    ):
        for name, value in (("vendor", vendor), ("class", kind), ("device", device)):
            write(root / "sys/bus/pci/devices" / address / name, f"{value}\n")
    assert list(node.gpus(root)) == [node.Gpu("0000:01:00.0", "0x2bb5")]


def test_a_listener_is_traced_to_its_unit_in_either_cgroup_version(root):
    header = "  sl  local_address rem_address   st\n"
    write(
        root / "proc/net/tcp",
        header + tcp("0100007F", 30000, "0A", 11) + tcp("0100007F", 30000, "01", 12) + tcp("00000000", 22, "0A", 13),
    )
    write(root / "proc/net/tcp6", header + tcp("0000000000000000FFFF00000200000A", 30000, "0A", 14))
    for pid, inode, command, group in (
        (812, 11, "python3", "0::/system.slice/sglang-default.service\n"),
        (
            90,
            14,
            "nginx",
            "12:pids:/\n1:name=systemd:/libpod-1.scope/system.slice/nginx.service/worker\n",
        ),
    ):
        write(root / f"proc/{pid}/cgroup", group)
        write(root / f"proc/{pid}/comm", f"{command}\n")
        (root / f"proc/{pid}/fd").mkdir()
        (root / f"proc/{pid}/fd/3").symlink_to(f"socket:[{inode}]")
    assert node.listeners(30000, root) == [
        node.Listener("127.0.0.1", 30000, 812, "python3", "sglang-default.service"),
        node.Listener("10.0.0.2", 30000, 90, "nginx", "nginx.service"),
    ]


def test_a_real_listener_of_this_machine_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        (found,) = node.listeners(server.getsockname()[1], Path("/"))
    assert (found.address, found.pid) == ("127.0.0.1", os.getpid())


def test_a_path_that_is_not_there_yet_lies_on_the_mount_of_its_nearest_parent(root):
    (root / "opt/a dir").mkdir(parents=True)
    write(
        root / "proc/self/mountinfo",
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "40 22 254:0 /x /opt/a\\040dir rw - ext4 /dev/vda rw\n"
        "41 22 254:9 / /op rw - ext4 /dev/vdb rw\n",
    )
    here = node.space("/opt/a dir/releases/new", root)
    assert (here.mount, here.device) == ("/opt/a dir", "254:0")
    assert here.free_bytes > 0
    assert node.space("/opt/cache", root).mount == "/"


def test_only_installed_packages_count(root):
    write(
        root / "var/lib/dpkg/status",
        "Package: gcc\nStatus: install ok installed\nVersion: 4:12.2.0-3\n\n"
        "Package: curl\nStatus: deinstall ok config-files\nVersion: 7.88\n\n"
        "Package: libnuma1\nStatus: install ok installed\nVersion: 2.0.16\n",
    )
    assert node.packages(("gcc", "curl", "absent"), root) == {"gcc": "4:12.2.0-3"}


def test_a_release_without_a_whole_manifest_is_not_installed(root):
    write(root / "opt/sglang/releases/done/manifest.json", json.dumps({"version": "0.5.12.post1", "lock": "abc"}))
    write(root / "opt/sglang/releases/torn/manifest.json", '{"version": "0.5')
    (root / "opt/sglang/releases/begun").mkdir()
    assert list(node.releases("/opt/sglang/releases", root)) == [node.InstalledRelease("done", "0.5.12.post1", "abc")]


def test_a_model_that_all_may_read(root, model):
    found = node.model_files("/srv/models/tiny", STRANGER, root)
    assert (found.exists, found.files, found.obstacles, found.unseen) == (True, 2, (), "")


def test_one_file_that_the_user_may_not_read_is_named_with_its_mode(root, model):
    (model / "model.safetensors").chmod(0o640)
    (found,) = node.model_files("/srv/models/tiny", STRANGER, root).obstacles
    assert found.path == "/srv/models/tiny/model.safetensors"
    assert found.why.endswith("0640")


def test_a_parent_folder_without_x_closes_the_way_once(root, model):
    (root / "srv/models").chmod(0o750)
    (found,) = node.model_files("/srv/models/tiny", STRANGER, root).obstacles
    assert found.path == "/srv/models"


@pytest.mark.parametrize(("mode", "owner_may", "member_may"), [(0o600, True, False), (0o040, False, True)])
def test_owner_and_group_bits_decide_for_owner_and_group(root, model, mode, owner_may, member_may):
    config = model / "config.json"
    if os.getuid() == 0:  # root is let through whatever the mode says
        os.chown(config, 4321, -1)
    config.chmod(mode)
    owner = node.Account("owner", config.stat().st_uid, frozenset())
    member = node.Account("member", 54321, frozenset({config.stat().st_gid}))
    assert bool(node.model_files("/srv/models/tiny", owner, root).obstacles) != owner_may
    assert bool(node.model_files("/srv/models/tiny", member, root).obstacles) != member_may


def test_a_folder_that_cannot_be_listed_is_an_obstacle(root, model):
    model.chmod(0o711)
    (found,) = node.model_files("/srv/models/tiny", STRANGER, root).obstacles
    assert found.path == "/srv/models/tiny"


def test_a_file_with_an_access_control_list_is_left_to_the_check_as_that_user(root, model, monkeypatch):
    (model / "config.json").chmod(0o600)
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"list" if name == "system.posix_acl_access" else b"")
    assert not node.model_files("/srv/models/tiny", STRANGER, root).obstacles


def test_a_user_that_is_not_made_yet_is_judged_as_other():
    assert node.account_of("no-such-user") == node.Account("no-such-user", -1, frozenset())


def test_links_are_judged_where_they_lead(root, model):
    blob = write(root / "srv/blobs/1")
    (model / "linked").symlink_to("../../blobs/1")
    (model / "dangling").symlink_to("../../blobs/2")
    blob.parent.chmod(0o700)
    found = {o.path: o.why for o in node.model_files("/srv/models/tiny", STRANGER, root).obstacles}
    assert set(found) == {"/srv/blobs", "/srv/models/tiny/dangling"}
    assert found["/srv/models/tiny/dangling"] == "a link to nothing"


def test_an_absent_and_an_empty_model(root):
    assert not node.model_files("/srv/none", STRANGER, root).exists
    (root / "srv/empty").mkdir(parents=True)
    assert node.model_files("/srv/empty", STRANGER, root).files == 0


def test_a_model_that_is_a_file_or_lacks_its_configuration(root, model):
    assert node.model_files("/srv/models/tiny", STRANGER, root).config
    file = node.model_files("/srv/models/tiny/config.json", STRANGER, root)
    assert (file.folder, file.config) == (False, False)
    (model / "config.json").unlink()
    found = node.model_files("/srv/models/tiny", STRANGER, root)
    assert (found.folder, found.config) == (True, False)


def test_what_the_sandbox_hides_is_found_by_name_and_behind_links(root, model):
    (root / "home/x").mkdir(parents=True)
    (root / "opt").mkdir()
    (root / "opt/linked").symlink_to("../home/x")
    paths = {
        "a": "/homes/x",
        "b": "/home/x/model",
        "c": "/opt/linked/model",
        "d": "/srv/models/tiny",
        "e": "/srv/../tmp",
        "f": "/var/tmp/x",
        "g": "/run/user/1",
        "h": "/root",
    }
    found = {path.setting: path.target for path in node.hidden(paths, root)}
    assert found == {
        "b": "/home/x/model",
        "c": "/home/x/model",
        "e": "/tmp",
        "f": "/var/tmp/x",
        "g": "/run/user/1",
        "h": "/root",
    }


def test_a_file_of_the_model_that_leads_into_a_hidden_folder(root, model):
    assert node.model_files("/srv/models/tiny", STRANGER, root).hidden == ""
    write(root / "home/x/blob")
    (model / "more.safetensors").symlink_to("../../../home/x/blob")
    assert node.model_files("/srv/models/tiny", STRANGER, root).hidden == "/home/x/blob"


def test_the_account_of_a_name(root):
    write(root / "etc/passwd", "root:x:0:0:root:/root:/bin/bash\nsglang:x:998:998::/nonexistent:/usr/sbin/nologin\n")
    assert node.login("sglang", root) == node.Login("sglang", 998, "/usr/sbin/nologin")
    assert node.login("sgl", root) is None


def test_another_interpreter_is_asked_and_a_broken_one_is_none(tmp_path):
    here = "{}.{}".format(*sys.version_info)
    other = write(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    broken = write(tmp_path / "broken", "#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    broken.chmod(0o755)
    assert node.python_version(sys.executable) == node.python_version(str(other)) == here
    assert node.python_version(str(broken)) == node.python_version(str(tmp_path / "none")) == ""


def test_the_headers_of_an_interpreter(root, tmp_path):
    here = sysconfig.get_path("include")
    assert node.python_headers(sys.executable, root) is False
    write(root / here.lstrip("/") / "Python.h")
    assert node.python_headers(sys.executable, root) is True
    other = write(tmp_path / "python", "#!/bin/sh\necho /usr/include/python3.99\n")
    other.chmod(0o755)
    assert node.python_headers(str(other), root) is False
    write(root / "usr/include/python3.99/Python.h")
    assert node.python_headers(str(other), root) is True
    assert node.python_headers(str(tmp_path / "none"), root) is None


def test_a_virtual_environment_has_the_headers_of_its_base(tmp_path):
    """Triton asks the environment's interpreter: what it says lies outside of the environment."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    write(tmp_path / "root" / sysconfig.get_path("include").lstrip("/") / "Python.h")
    link = write(tmp_path / "python", f'#!/bin/sh\nexec {venv}/bin/python "$@"\n')
    link.chmod(0o755)
    assert node.python_headers(str(link), tmp_path / "root") is True


def test_a_whole_reading(root, model):
    write(root / "etc/os-release", "ID=debian\nVERSION_ID=12\n")
    write(root / "etc/passwd", "sglang:x:1000:1000::/home/sglang:/bin/bash\n")
    write(root / "opt/sglang/cache/inference.sglang/abc")
    write(root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module\nGCC\n")
    settings = NodeSettings(
        release="0.5.12.post1",
        python=sys.executable,
        python_version="",
        locks={},
        releases_path="/opt/sglang/releases",
        cache_path="/opt/sglang/cache",
        toolkit="/opt/sglang/toolkits/13.0",
        toolkit_lock="def",
        instance="default",
        host="127.0.0.1",
        port=30000,
        model="/srv/models/tiny",
        user="sglang",
        gpu_required=True,
        cpu_engine=False,
        unit_paths={"sglang_root": "/home/x/sglang"},
    )
    facts = node.read(settings, root, STRANGER)
    assert (facts.distribution, facts.distribution_version, facts.cached_locks) == ("debian", "12", ("abc",))
    assert facts.driver == "NVRM version: NVIDIA UNIX Open Kernel Module"
    assert (facts.toolkit_installed, facts.listeners, facts.gpus) == (False, (), ())
    assert facts.hidden == (node.HiddenPath("sglang_root", "/home/x/sglang", "/home/x/sglang"),)
    assert facts.login == node.Login("sglang", 1000, "/bin/bash")
    assert (facts.python_headers, facts.numa_library) == (False, False)
    write(root / "usr/lib/x86_64-linux-gnu/libnuma.so.1")
    assert node.read(settings, root, STRANGER).numa_library is True
    assert json.loads(json.dumps(facts.as_dict()))["model"]["files"] == 2


@pytest.mark.parametrize(
    "path",
    ["modules/preflight", *(f"module_utils/{name}" for name in ("findings", "node", "releases", "rules", "settings"))],
)
def test_an_old_python_gets_a_finding_and_not_a_syntax_error(path):
    """Ubuntu 22.04 has Python 3.10; ansible-core 2.19 reaches nodes from 3.8 on."""
    plugins = Path(node.__file__).parents[1]
    ast.parse((plugins / f"{path}.py").read_text(), feature_version=(3, 9))
