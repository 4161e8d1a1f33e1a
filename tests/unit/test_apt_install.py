# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Installations, with recorded answers in place of apt and dpkg."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import apt, apt_install
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding

UNKNOWN = (100, "", "E: Unable to locate package cuda-toolkit-13-0\n")
STEP = "Inst cuda-toolkit-13-0 (13.0.2-1 NVIDIA CUDA:h [all])"
DONE = (0, f"{STEP}\nConf cuda-toolkit-13-0 (13.0.2-1)\n", "")
Answers = dict[str, list[tuple[int, str, str]]]


class Node:
    """Answers a command by its second word, in turn; keeps what was asked."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        self.asked.append(argv)
        return self.answers[argv[1]].pop(0)


def test_installed_packages_are_read() -> None:
    rows = (
        "libcuda1\t580.95.05-1\thold\tinstalled\ngone\t1\tdeinstall\tconfig-files\nbash\t5\tinstall\tinstalled\ncut\t"
    )
    found = apt_install.installed(Node({"--show": [(0, rows, "")]}))
    assert found == apt_install.Packages({"libcuda1": "580.95.05-1", "bash": "5"}, frozenset({"libcuda1"}))
    assert apt_install.missing(["bash", "libcuda1=580.105.08-1", "bash=5", "zsh"], found) == [
        "libcuda1=580.105.08-1",
        "zsh",
    ]


def test_what_dpkg_has_not_finished_is_named() -> None:
    states = ("unpacked", "half-configured", "half-installed", "installed", "config-files", "triggers-pending")
    rows = "".join(f"nvidia-{state}\t580.95.05-1\tinstall\t{state}\n" for state in states)
    found = apt_install.installed(Node({"--show": [(0, f"{rows}bash\t5\tinstall\tunpacked\n", "")]}))
    (finding,) = apt_install.interrupted(found, apt.is_driver)
    assert (finding.id, finding.severity) == ("apt.interrupted", "error")
    assert finding.seen.endswith("installing nvidia-half-configured, nvidia-half-installed, nvidia-unpacked")
    assert "dpkg --configure -a" in finding.remedy
    assert apt_install.interrupted(apt_install.Packages({}, frozenset(), frozenset({"bash"})), apt.is_driver) == []


def test_a_simulation_that_knows_the_package_asks_once() -> None:
    node = Node({"install": [DONE]})
    assert [step.line for step in apt_install.simulate(node, ["cuda-toolkit-13-0"])] == [STEP]
    assert "--simulate" in node.asked[0]
    assert "--no-install-recommends" in node.asked[0]


def test_lists_are_read_again_where_a_package_is_unknown() -> None:
    node = Node({"install": [UNKNOWN, DONE], "update": [(0, "", "")]})
    assert len(apt_install.simulate(node, ["cuda-toolkit-13-0"], recommends=True)) == 1
    assert [argv[1] for argv in node.asked] == ["install", "update", "install"]
    assert f"--option=Dir::Etc::sourcelist={apt.SOURCE}" in node.asked[1]
    assert "--install-recommends" in node.asked[2]


def test_lists_are_read_first_for_the_newest() -> None:
    node = Node({"install": [DONE], "update": [(0, "", "")]})
    apt_install.simulate(node, ["x"], newest=True)
    assert [argv[1] for argv in node.asked] == ["update", "install"]


def test_check_mode_reads_no_lists() -> None:
    node = Node({"install": [UNKNOWN]})
    with pytest.raises(apt_install.AptError, match="Unable to locate") as caught:
        apt_install.simulate(node, ["cuda-toolkit-13-0"], fresh=False, newest=True)
    assert [finding.id for finding in caught.value.findings] == ["apt.refused"]


def test_a_plan_in_check_mode_names_what_it_cannot_simulate() -> None:
    steps, (finding,) = apt_install.plan(Node({"install": [UNKNOWN]}), ["cuda-toolkit-13-0"], check=True)
    assert [step.line for step in steps] == ["Inst cuda-toolkit-13-0"]
    assert (finding.id, finding.severity) == ("apt.not_simulated", "info")
    with pytest.raises(apt_install.AptError):
        apt_install.plan(Node({"install": [UNKNOWN, UNKNOWN], "update": [(0, "", "")]}), ["x"], check=False)
    assert apt_install.plan(Node({"install": [DONE]}), ["x"], check=True)[1] == []


def test_stop_fails_with_errors_alone() -> None:
    said: list[dict[str, object]] = []
    info, error = Finding("a.b", "info", "x", "y"), Finding("a.c", "error", "x", "y")
    apt_install.stop(lambda **given: said.append(given), [info])
    assert said == []
    apt_install.stop(lambda **given: said.append(given), [info, error])
    assert said[0]["msg"] == str(error)
    assert len(said[0]["findings"]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("newest", [True, False])
def test_lists_that_cannot_be_read_stop_it(newest: bool) -> None:
    node = Node({"install": [UNKNOWN], "update": [(100, "", "E: NO_PUBKEY 27541B7D7D9FD33C")]})
    with pytest.raises(apt_install.AptError) as caught:
        apt_install.simulate(node, ["x"], newest=newest)
    assert [finding.id for finding in caught.value.findings] == ["apt.key_missing"]


def test_an_update_that_says_nothing_known_is_an_error_all_the_same() -> None:
    assert [finding.id for finding in apt_install.update(Node({"update": [(100, "strange", "")]}))] == ["apt.update"]
    assert apt_install.update(Node({"update": [(0, "", "")]})) == []


@pytest.mark.parametrize(
    "action",
    [
        lambda node: apt_install.install(node, ["x"]),
        lambda node: apt_install.remove(node, ["x"]),
        lambda node: apt_install.hold(node, ["x"]),
    ],
)
def test_a_failure_carries_what_was_said(action: Callable[[Node], object]) -> None:
    failed = [(100, "", "E: dpkg was interrupted")]
    with pytest.raises(apt_install.AptError, match="dpkg was interrupted"):
        action(Node({"install": failed, "remove": list(failed), "hold": list(failed)}))


ARCHIVES = "E: Could not get lock /var/cache/apt/archives/lock. It is held by process 812 (unattended-upgr)\n"
LOCKS = [
    "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (apt-get)\nE: Unable to lock directory\n",
    ARCHIVES,
    # As dpkg says it on Debian 11, 12 and 13.
    "dpkg: error: dpkg status database is locked by another process\n",
    "dpkg: error: dpkg database lock was locked by another process with pid 812\n",
    "dpkg: error: dpkg database lock was locked by /usr/bin/python3.13 process with pid 812\n",
    "dpkg: error: dpkg frontend lock was locked by another process with pid 812\n",
]
NEEDS_LOCK: list[Callable[[Node], object]] = [
    apt_install.update,
    lambda node: apt_install.install(node, ["x"]),
    lambda node: apt_install.remove(node, ["x"]),
    lambda node: apt_install.hold(node, ["x"]),
]


@pytest.mark.parametrize("said", LOCKS)
@pytest.mark.parametrize("action", NEEDS_LOCK)
def test_another_apt_is_waited_for(
    action: Callable[[Node], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """unattended-upgrades holds locks that apt's own timeout is not about."""
    waited: list[float] = []
    monkeypatch.setattr(apt_install.time, "sleep", waited.append)
    answers = [(100, "", said), (100, "", said), (0, "", "")]
    node = Node({name: list(answers) for name in ("update", "install", "remove", "hold")})
    action(node)
    assert (len(node.asked), len(waited)) == (3, 2)


@pytest.mark.parametrize("action", NEEDS_LOCK)
def test_another_apt_that_does_not_end_is_named(
    action: Callable[[Node], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt_install, "PATIENCE", -1.0)
    node = Node({name: [(100, "", ARCHIVES)] for name in ("update", "install", "remove", "hold")})
    try:
        found = action(node)
    except apt_install.AptError as error:
        found = error.findings
    (finding,) = found  # type: ignore[misc]
    assert finding.id == "apt.locked"
    assert "812 (unattended-upgr)" in finding.seen
    assert "unattended-upgrades" in finding.remedy


def test_what_works_is_silent() -> None:
    node = Node({"install": [DONE], "remove": [(0, "Remv x [1]", "")], "hold": [(0, "", "")], "unhold": [(0, "", "")]})
    apt_install.install(node, ["x"])
    assert [step.package for step in apt_install.remove(node, ["x"], simulate=True)] == ["x"]
    apt_install.hold(node, ["x"])
    apt_install.hold(node, ["x"], held=False)
    assert ["--yes" in argv for argv in node.asked] == [True, False, False, False]


def test_lists_are_there_where_a_file_of_theirs_is() -> None:
    said = [(0, "/var/lib/apt/lists/h_cuda_Packages\n", "")]
    assert apt_install.lists_are_there(Node({"indextargets": list(said)}), ["h_cuda_Packages.lz4"])
    assert not apt_install.lists_are_there(Node({"indextargets": list(said)}), ["other_Packages"])
    assert not apt_install.lists_are_there(Node({"indextargets": [(0, "\n", "")]}), ["h_cuda_Packages"])


def test_what_a_package_needs_is_told_by_its_installed_dependencies() -> None:
    said = "cuda-toolkit-13-0\n  Depends: cuda-nvcc-13-0\n    libc6:i386\ncuda-nvcc-13-0\nlibc6:i386\n<virtual>\n"
    node = Node({"depends": [(0, said, ""), (100, "", "E: No packages found")]})
    assert apt_install.needed(node, ["cuda-toolkit-13-0"]) == {"cuda-toolkit-13-0", "cuda-nvcc-13-0", "libc6"}
    assert apt_install.needed(node, ["unknown"]) == set()


@pytest.mark.parametrize(
    "name", ["cuda-nvcc-13-0", "libcublas-dev-13-0", "libnvjitlink-13-0", "libnpp-13-0", "nsight-compute-2025.3.1"]
)
def test_packages_of_cuda_are_known_by_name(name: str) -> None:
    assert apt_install.CUDA.match(name)


@pytest.mark.parametrize("name", ["libcurl4", "libcups2", "libnvme1", "libnvpair3linux", "libc6", "gcc-12"])
def test_packages_of_the_distribution_are_nobodys_to_hold(name: str) -> None:
    """Held, they would miss the distribution's security updates."""
    assert not apt_install.CUDA.match(name)


def test_changes_held_by_others_are_refused() -> None:
    node = apt_install.Packages({}, frozenset({"libcuda1", "linux-image-amd64"}))
    steps = apt.changes(
        "Inst libcuda1 [1] (2 x [all])\nInst linux-image-amd64 [1] (2 x [all])\nInst free [1] (2 x [all])"
    )
    (finding,) = apt_install.changes_held(steps, node, apt.is_driver)
    assert (finding.id, finding.seen.count("Inst")) == ("apt.changes_held", 1)
    assert "apt-mark unhold linux-image-amd64" in finding.remedy
    assert apt_install.changes_held(steps[:1], node, apt.is_driver) == []
