# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each rule by one fit node and the smallest change that makes it unfit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import node, rules
from ansible_collections.inference.sglang.plugins.module_utils.hardware import CudaTree, Hardware
from ansible_collections.inference.sglang.plugins.module_utils.releases import RELEASES
from ansible_collections.inference.sglang.plugins.module_utils.settings import NodeSettings
from ansible_collections.inference.sglang.plugins.module_utils.toolkit_rules import Tree

ANY = "0.0.0.0"  # noqa: S104
RELEASE = RELEASES["0.5.12.post1"]
SETTINGS = NodeSettings(
    release=RELEASE.version,
    python="/usr/bin/python3",
    python_version="",
    locks={"3.11": "abc"},
    releases_path="/opt/releases",
    cache_path="/opt/cache",
    toolkit="/opt/toolkits/13.0",
    toolkit_lock="def",
    instance="default",
    host="127.0.0.1",
    port=30000,
    model="/srv/model",
    user="sglang",
    gpu_required=True,
    cpu_engine=False,
)


def spaces(free_gb: float, cache_mount: str = "/", cache_device: str = "254:0") -> dict[str, node.Space]:
    free = int(free_gb * 10**9)
    return {
        "/opt/releases": node.Space("/opt/releases", "/", "254:0", free),
        "/opt/cache": node.Space("/opt/cache", cache_mount, cache_device, free),
        "/opt/toolkits/13.0": node.Space("/opt/toolkits/13.0", "/", "254:0", free),
    }


FIT = node.NodeFacts(
    distribution="debian",
    distribution_version="12",
    architecture="x86_64",
    glibc="2.36",
    python="3.11",
    gpus=(node.Gpu("0000:01:00.0", "0x2bb5"),),
    driver="NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05",
    driver_library="",
    spaces=spaces(100),
    listeners=(),
    packages={},
    releases=(),
    cached_locks=(),
    toolkit_installed=False,
    model=node.ModelFiles("/srv/model", True, 3, (), ""),
)
INSTALLED = (node.InstalledRelease("0.5.12.post1-abc", "0.5.12.post1", "abc"),)


def ids(facts: node.NodeFacts = FIT, settings: NodeSettings = SETTINGS) -> list[str]:
    return [finding.id for finding in rules.judge(settings, facts, RELEASE)]


def listener(address: str = "127.0.0.1", unit: str = "nginx.service") -> node.Listener:
    return node.Listener(address, 30000, 812, "nginx", unit)


def files(**changes) -> node.ModelFiles:
    return replace(FIT.model, **changes)


def test_a_fit_node_has_no_finding():
    assert ids() == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"architecture": "aarch64"}, "node.architecture"),
        ({"distribution": "rocky", "distribution_version": "9"}, "node.distribution"),
        ({"distribution": "debian", "distribution_version": "11"}, "node.distribution"),
        ({"distribution": "", "distribution_version": ""}, "node.distribution"),
        ({"distribution": "ubuntu", "distribution_version": "24.04"}, "node.distribution_untested"),
        ({"glibc": "2.31"}, "node.glibc"),
        ({"glibc": "2.4"}, "node.glibc"),
        ({"glibc": ""}, "node.glibc"),
        ({"python": ""}, "node.python"),
        ({"python": "3.10"}, "release.python"),
        ({"python": "3.14"}, "release.python"),
        ({"systemd": False}, "node.systemd"),
        ({"python_headers": False}, "python.headers"),
        ({"numa_library": False}, "library.numa"),
        ({"gpus": ()}, "gpu.missing"),
        ({"driver": ""}, "gpu.driver_missing"),
        ({"listeners": (listener(),)}, "port.taken"),
        ({"listeners": (listener(ANY),)}, "port.taken"),
        ({"listeners": (listener("::"),)}, "port.taken"),
        ({"listeners": (listener(unit="sglang-other.service"),)}, "port.taken"),
        ({"model": files(exists=False, files=0)}, "model.missing"),
        ({"model": files(files=0)}, "model.empty"),
        ({"model": files(obstacles=(node.Obstacle("/srv", "root:root 0700"),))}, "model.unreadable"),
        ({"model": files(unseen="/srv/model")}, "model.unseen"),
        ({"model": files(files=1, folder=False, config=False)}, "model.not_a_folder"),
        ({"model": files(config=False)}, "model.no_config"),
        ({"model": files(hidden="/home/x/model")}, "path.hidden"),
        ({"hidden": (node.HiddenPath("sglang_root", "/opt/sglang", "/root/sglang"),)}, "path.hidden"),
        ({"login": node.Login("sglang", 1000, "/usr/sbin/nologin")}, "user.taken"),
        ({"login": node.Login("sglang", 998, "/bin/bash")}, "user.taken"),
        ({"login": node.Login("sglang", 998, "")}, "user.taken"),
        ({"login": node.Login("sglang", 0, "/usr/sbin/nologin")}, "user.taken"),
    ],
)
def test_one_change_one_finding(change, expected):
    assert ids(replace(FIT, **change)) == [expected]


@pytest.mark.parametrize(
    "change",
    [
        {"distribution_version": "13", "glibc": "2.41", "python": "3.13"},
        {"listeners": (listener(unit="sglang-default.service"),)},
        {"listeners": (listener("10.0.0.5"),)},
        {"glibc": "2.100"},
        {"login": node.Login("sglang", 998, "/usr/sbin/nologin")},
        {"login": node.Login("sglang", 998, "/bin/false")},
        {"model": None},
        {"python_headers": True, "numa_library": True},
        {"python_headers": None, "numa_library": None},
    ],
)
def test_what_is_fine_stays_fine(change):
    assert ids(replace(FIT, **change)) == []


def test_a_server_on_every_address_meets_a_listener_on_one():
    facts = replace(FIT, listeners=(listener("10.0.0.5"),))
    assert ids(facts, replace(SETTINGS, host=ANY)) == ["port.taken"]
    assert ids(facts, replace(SETTINGS, host="node1")) == ["port.taken"]
    assert ids(facts, replace(SETTINGS, host="localhost")) == []


def test_an_interpreter_of_another_version_than_the_lock_is_chosen_by():
    assert ids(FIT, replace(SETTINGS, python_version="3.12")) == ["node.python_version"]
    assert ids(FIT, replace(SETTINGS, python_version="3.11")) == []


@pytest.mark.parametrize(
    ("distribution", "version", "python", "packages", "package"),
    [
        ("debian", "12", "3.11", (), "python3-dev"),
        ("debian", "12", "3.11", ("python3-dev",), ""),
        ("debian", "12", "3.11", ("libpython3.11-dev",), ""),
        ("debian", "13", "3.13", ("python3-dev",), ""),
        ("ubuntu", "24.04", "3.12", ("python3-dev",), ""),
        # Another Python than the distribution's own.
        ("ubuntu", "24.04", "3.11", ("python3-dev",), "python3.11-dev"),
        ("ubuntu", "22.04", "3.12", ("python3-dev", "python3.10-dev"), "python3.12-dev"),
        ("ubuntu", "22.04", "3.12", ("python3.12-dev",), ""),
    ],
)
def test_the_headers_of_the_interpreter(distribution, version, python, packages, package):
    place = {"distribution": distribution, "distribution_version": version}
    facts = replace(FIT, **place, python=python, python_headers=False)
    settings = replace(SETTINGS, packages=packages)
    found = [found for found in rules.judge(settings, facts, RELEASE) if found.id == "python.headers"]
    assert [finding.remedy for finding in found] == ([f"Add {package} to uv_packages"] if package else [])


def test_the_installation_brings_libnuma():
    assert ids(replace(FIT, numa_library=False), replace(SETTINGS, packages=("libnuma1",))) == []


def test_headers_of_an_interpreter_that_is_not_there():
    assert ids(replace(FIT, python="", python_headers=False)) == ["node.python"]


def test_a_taken_port_names_its_holder():
    (finding,) = rules.judge(SETTINGS, replace(FIT, listeners=(listener(),)), RELEASE)
    assert "process 812 (nginx) of nginx.service, not by sglang-default.service" in finding.seen


def test_a_node_without_a_gpu_goes_on_when_the_inventory_allows_it():
    bare = replace(FIT, gpus=(), driver="")
    (finding,) = rules.judge(replace(SETTINGS, gpu_required=False), bare, RELEASE)
    assert (finding.id, finding.severity) == ("gpu.absent", "info")
    assert "goes on because preflight_gpu_required is false" in finding.seen


def test_the_stand_in_for_a_driver_meets_no_driver():
    settings = replace(SETTINGS, cpu_engine=True)
    assert ids(FIT, settings) == ["cpu_engine.driver_present"]
    library = replace(FIT, driver="", driver_library="/usr/lib64/libcuda.so.1")
    assert ids(library, settings) == ["cpu_engine.driver_present"]
    assert ids(replace(FIT, driver=""), settings) == []


WHEELS_GB = RELEASE.install_mb / 1000 + 0.3


@pytest.mark.parametrize(
    ("facts", "least_gb"),
    [
        (FIT, 0.1 + WHEELS_GB + 1.3 + 2),
        (replace(FIT, toolkit_installed=True), 0.1 + WHEELS_GB + 2),
        (replace(FIT, cached_locks=("abc",)), 0.1 + 1.3 + 2),
        (replace(FIT, cached_locks=("abc", "def")), 0.1 + 2),
        (
            replace(FIT, cached_locks=("other",), releases=(replace(INSTALLED[0], lock="other"),)),
            0.1 + WHEELS_GB + 1.3 + 2,
        ),
        (replace(FIT, releases=INSTALLED), 1.3 + 2),
    ],
    ids=["bare", "toolkit", "cached", "both cached", "another lock", "release"],
)
def test_the_disk_needs_room_for_what_is_not_there_yet(facts, least_gb):
    assert ids(replace(facts, spaces=spaces(least_gb + 0.001))) == []
    (finding,) = rules.judge(SETTINGS, replace(facts, spaces=spaces(least_gb - 0.5)), RELEASE)
    assert finding.id == "disk.too_small"
    assert "0.5 GB are missing" in finding.seen


def test_an_upgrade_needs_at_most_what_it_does_not_share():
    (first,) = rules.judge(SETTINGS, replace(FIT, spaces=spaces(1)), RELEASE)
    assert "at most" not in first.seen
    (upgrade,) = rules.judge(SETTINGS, replace(FIT, spaces=spaces(1), cached_locks=("another",)), RELEASE)
    assert "needed are 0.1 GB below /opt/releases, at most " in upgrade.seen


def test_a_toolkit_that_others_bring_needs_no_room_for_wheels():
    full = replace(FIT, releases=INSTALLED, spaces=spaces(0))
    assert ids(full) == ["disk.too_small"]
    assert ids(full, replace(SETTINGS, toolkit_lock="")) == []


def test_a_full_disk_is_fine_when_all_is_installed():
    assert ids(replace(FIT, releases=INSTALLED, toolkit_installed=True, spaces=spaces(0))) == []


def test_on_two_mounts_a_release_is_a_full_copy():
    cached = replace(FIT, cached_locks=("abc",), toolkit_installed=True)
    assert ids(replace(cached, spaces=spaces(12, "/cache", "254:9"))) == ["disk.two_mounts"]
    assert ids(replace(cached, spaces=spaces(10, "/cache", "254:9"))) == ["disk.too_small", "disk.two_mounts"]


def test_two_mounts_of_one_device_share_its_space():
    bare = replace(FIT, toolkit_installed=True, spaces=spaces(15, "/cache", "254:0"))
    assert ids(bare) == ["disk.too_small", "disk.two_mounts"]


def test_a_hidden_path_is_told_once_and_with_where_it_leads():
    hidden = (
        node.HiddenPath("sglang_root", "/home/x/sglang", "/home/x/sglang"),
        node.HiddenPath("sglang_releases_path", "/home/x/sglang/releases", "/home/x/sglang/releases"),
        node.HiddenPath("sglang_python", "/opt/python", "/root/python"),
    )
    first, second = rules.judge(SETTINGS, replace(FIT, hidden=hidden), RELEASE)
    assert first.seen.startswith("sglang_root: /home/x/sglang lies where")
    assert second.seen.startswith("sglang_python: /opt/python leads to /root/python, which lies where")


def test_a_model_by_its_hub_name_is_refused():
    assert ids(FIT, replace(SETTINGS, model="org/some-model")) == ["model.not_a_path"]


def test_many_unreadable_files_are_counted():
    obstacles = tuple(node.Obstacle(f"/srv/model/{index}", "root:root 0600") for index in range(9))
    (finding,) = rules.judge(SETTINGS, replace(FIT, model=files(obstacles=obstacles)), RELEASE)
    assert "/srv/model/0 (root:root 0600)" in finding.seen
    assert finding.seen.endswith("and 6 more")


@pytest.mark.parametrize("name", ["grammar-backend", "--grammar-backend"])
def test_a_grammar_backend_that_the_lock_leaves_out_is_refused_on_that_python_only(name):
    (finding,) = rules.known_faults({"pp-size": 8, name: "outlines"}, "3.13", RELEASE)
    assert (finding.id, finding.severity) == ("release.known_fault", "error")
    assert "--grammar-backend outlines does not work on Python 3.13" in finding.seen
    assert rules.known_faults({name: "outlines"}, "3.12", RELEASE) == []
    assert rules.known_faults({name: "xgrammar"}, "3.13", RELEASE) == []


def severities(settings, facts, hardware):
    return {finding.id: finding.severity for finding in rules.judge(settings, facts, RELEASE, hardware)}


def redirected(container=""):
    """A node whose IOMMU translates between cards on PCIe, with an old driver."""
    recorded = json.loads((Path(__file__).parent / "data/nodes/eight_rtx_pro_6000_redirected.json").read_text())
    read = Hardware.from_dict(recorded["hardware"])
    return replace(
        read,
        driver=replace(read.driver, version="570.86.10", library="570.86.10"),
        kernel=replace(read.kernel, container=container),
    )


def test_hardware_is_judged_with_the_node():
    found = severities(SETTINGS, FIT, redirected())
    assert [found[name] for name in ("pcie.iommu", "pcie.acs", "driver.old")] == ["error", "error", "error"]
    assert "pcie.iommu" not in severities(SETTINGS, FIT, None)


def test_what_a_role_sets_right_afterwards_is_a_warning():
    found = severities(replace(SETTINGS, boot_managed=True), FIT, redirected())
    assert [found[name] for name in ("pcie.iommu", "pcie.acs", "driver.old")] == ["warning", "warning", "error"]
    found = severities(replace(SETTINGS, driver_managed=True), replace(FIT, driver=""), redirected())
    assert [found[name] for name in ("pcie.iommu", "gpu.driver_missing", "driver.old")] == [
        "error",
        "warning",
        "warning",
    ]
    told = [
        finding
        for finding in rules.judge(replace(SETTINGS, driver_managed=True), FIT, RELEASE, redirected())
        if finding.id == "driver.old"
    ]
    assert "Role nvidia_driver installs" in told[0].remedy
    assert told[0].source == "roles/nvidia_driver/README.md"


def test_in_a_container_no_role_sets_it_right():
    managed = replace(SETTINGS, driver_managed=True, boot_managed=True)
    assert severities(managed, FIT, redirected("docker"))["driver.old"] == "error"


def test_an_operator_may_know_the_hardware_better():
    found = severities(replace(SETTINGS, accepted=("pcie.iommu", "pcie.acs")), FIT, redirected())
    assert [found[name] for name in ("pcie.iommu", "pcie.acs", "driver.old")] == ["warning", "warning", "error"]


@pytest.mark.parametrize("name", ["port.taken", "pcie", "model.unreadable"])
def test_only_hardware_and_weights_can_be_accepted(name):
    settings = replace(SETTINGS, accepted=("pcie.acs", name))
    (finding,) = rules.judge(settings, FIT, RELEASE)
    assert finding.id == "preflight.accepted"
    assert finding.seen == f"preflight_accepted names {name}"


def test_a_toolkit_that_was_read_is_judged_once():
    """Not again by what a look at the usual places tells of it."""
    home = "/usr/local/cuda-12.8"
    settings = replace(SETTINGS, cuda_home=f"{home}/", cuda_version="12.8", cuda_architecture="120f")
    tree = Tree(target=home, nvcc="12.8.61", headers="12.8")
    text = (Path(__file__).parent / "data/nodes/eight_rtx_pro_6000.json").read_text()
    usual = CudaTree(path=home, target=home, found=("folder",), nvcc="12.8", headers="12.8")
    hardware = replace(Hardware.from_dict(json.loads(text)["hardware"]), cuda_trees=(usual,))
    judged = {
        given: [
            finding.id
            for finding in rules.judge(settings, FIT, RELEASE, hardware, given)
            if finding.id.startswith(("toolkit.", "cuda."))
        ]
        for given in (None, tree)
    }
    assert judged == {None: ["cuda.toolkit"], tree: ["toolkit.torch"]}
    assert not rules.judge(replace(settings, cuda_home=""), FIT, RELEASE, None, tree)


def test_what_lies_where_a_model_will_be_fetched_to_is_judged():
    """A file in the way of the folder stops the role; what the service user cannot read yet does not."""
    assert ids(replace(FIT, download=files(folder=False))) == [ids(replace(FIT, model=files(folder=False)))[0]]
    locked = files(obstacles=(node.Obstacle("/srv/model/a", "root:root 0600"),))
    found = {finding.id: finding.severity for finding in rules.judge(SETTINGS, replace(FIT, download=locked), RELEASE)}
    assert found == {"model.unreadable": "warning"}
    assert ids(replace(FIT, download=files())) == []
