# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a host's variables on the controller; no connection to the node is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.ansible_release import __version__
from ansible.module_utils.compat.version import LooseVersion
from ansible.plugins.action import ActionBase
from ansible_collections.inference.sglang.plugins.module_utils import (
    drivers,
    releases,
    rules,
    settings,
    toolkit_rules,
    weights,
    wheels,
)
from ansible_collections.inference.sglang.plugins.module_utils.findings import Finding, as_dicts, errors
from ansible_collections.inference.sglang.plugins.plugin_utils import apt_keys, instances, role_files, variables

COLLECTION = Path(__file__).parents[2]
ROLES = COLLECTION / "roles"
# What a default may refer to without any fact of the node.
MAGIC = ("groups", "hostvars", "inventory_dir", "inventory_hostname", "playbook_dir")


class ActionModule(ActionBase):  # type: ignore[misc]
    """Action behind ``validate_settings``; documented in ``plugins/modules/validate_settings.py``."""

    _VALID_ARGS = frozenset({"roles"})
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return ``settings`` and ``findings``; fail with all errors at once, one a line."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        self._check_core(__version__)
        specs = {path.name: self._options(path) for path in sorted(ROLES.iterdir()) if path.is_dir()}
        chosen = self._task.args.get("roles") or list(specs)
        if strangers := sorted(set(chosen).difference(specs)):
            raise AnsibleActionFail(f"roles: {', '.join(strangers)} are not among: {', '.join(specs)}")

        defaults: dict[str, Any] = {}
        for role in specs:
            defaults.update(self._load(ROLES / role / "defaults" / "main.yml"))
        merged = {**defaults, **task_vars}
        templar = self._templar.copy_with_new_env(available_variables=merged)

        values: dict[str, Any] = {}
        derived: list[Finding] = []
        findings = settings.unknown(specs, task_vars)
        for role in chosen:
            for name, option in specs[role].items():
                told = derived if name in defaults and merged[name] == defaults[name] else findings
                try:
                    given = {name: templar.template(merged[name])} if name in merged else {}
                except AnsibleError as error:
                    told.append(_unresolved(name, role, error))
                    continue
                wrong, value = variables.judge(name, option, role, given, defaults.get(name))
                told += wrong
                if given and not wrong and not option.get("no_log"):
                    values[name] = value
        key = self._key(templar, merged)
        findings += [
            *self._of_release(values, defaults, key, task_vars),
            *_of_toolkit(values),
            *settings.judge_together(values),
            *drivers.judge_settings(values),
            *_of_repository(values, task_vars),
            *weights.judge_settings(
                {**values, "model_weights_token": bool(merged.get("model_weights_token"))},
                (task_vars.get("inventory_dir"), task_vars.get("playbook_dir")),
                task_vars.get("groups", {}).get("all"),
            ),
            *_of_patches(values, task_vars),
        ]
        unlocked = _of_python(values)
        if merged["sglang_python_version"] != defaults["sglang_python_version"]:
            findings += unlocked
        # A default goes wrong by a variable that is judged itself, or by the node's own Python, which preflight judges:
        # told only where neither tells why.
        if not errors(findings) and not unlocked:
            findings += derived

        host = task_vars["inventory_hostname"]
        if stopping := errors(findings):
            worth_knowing = [finding for finding in findings if finding.severity == "warning"]
            lines = "\n".join(f"{host}: {finding}" for finding in (*stopping, *worth_knowing))
            result.update(
                failed=True, msg=f"{len(stopping)} wrong in the settings of {host}, nothing was changed:\n{lines}"
            )
        else:
            waived = weights.waived(values.get("sglang_server_flags") or {})
            result.update(settings=values, locks=_locks(values), model_waived=waived)
            result.update(model_wanted=weights.wanted_by(values))
        result.update(changed=False, findings=as_dicts(findings))
        return result

    @staticmethod
    def _check_core(version: str) -> None:
        """Ansible itself only warns of what meta/runtime.yml asks for, and fails later, of something else."""
        runtime = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text(encoding="utf-8"))
        needed = runtime["requires_ansible"]
        least = needed.removeprefix(">=")
        if LooseVersion(version) < LooseVersion(least):
            raise AnsibleActionFail(
                f"ansible-core {version} runs this, and the collection needs {needed}: install that on the controller"
            )

    def _of_release(
        self, values: Mapping[str, Any], defaults: Mapping[str, Any], key: str, task_vars: Mapping[str, Any]
    ) -> list[Finding]:
        """The release by name, and the instance's plan, as far as it can be made without the node, against it.

        What is missing of the plan is a finding of its own: the role's default stands in, so that the rest is judged.
        """
        release = str(values.get("sglang_release", ""))
        found = releases.check(release) if "sglang_release" in values else []
        known = "sglang_release" in values and not found
        folders = tuple(str(task_vars[name]) for name in ("inventory_dir", "playbook_dir") if task_vars.get(name))
        try:
            instance = instances.wanted(values, key=key, folders=folders)
        except KeyError:
            magic = {name: task_vars[name] for name in MAGIC if name in task_vars}
            missing = {**defaults, **magic, "model_weights_path": "/nonexistent", "ansible_facts": {}}
            templar = self._templar.copy_with_new_env(available_variables=missing)
            stand_ins = {name: templar.template(missing[name]) for name in missing if name not in magic}
            instance = instances.wanted(stand_ins | dict(values), key=key, folders=folders)
        for finding in instances.planned(instance, release if known else defaults["sglang_release"]).findings:
            room = finding.id.partition(".")[0]
            if room == "flag" and known:
                found.append(replace(finding, seen=f"sglang_server_flags: {finding.seen}"))
            elif (known or room not in ("flag", "spelling", "launch")) and finding.id != "tuning.unknown":
                found.append(finding)
        if known:
            found += rules.known_faults(
                instance.settings.flags, str(values.get("sglang_python_version")), releases.RELEASES[release]
            )
        return found

    @staticmethod
    def _key(templar: Any, merged: Mapping[str, Any]) -> str:
        """The API key; empty where it cannot be evaluated, which is told like that of any variable."""
        try:
            return str(templar.template(merged.get("sglang_server_api_key")) or "")
        except AnsibleError:
            return ""

    def _load(self, path: Path) -> dict[str, Any]:
        return (self._loader.load_from_file(str(path), trusted_as_template=True) or {}) if path.is_file() else {}

    def _options(self, role: Path) -> dict[str, dict[str, Any]]:
        """Options of all entry points; what only another one than ``main`` requires is not required here."""
        entries = self._load(role / "meta" / "argument_specs.yml").get("argument_specs", {})
        options: dict[str, dict[str, Any]] = {}
        for entry, content in entries.items():
            for name, option in content.get("options", {}).items():
                if entry == "main":
                    options[name] = option
                else:
                    options.setdefault(name, {**option, "required": False})
        return options


def _unresolved(name: str, role: str, error: AnsibleError) -> Finding:
    return Finding(
        "settings.unresolved",
        "error",
        f"{name} cannot be evaluated: {error.message}".rstrip("."),
        "Define what it refers to; facts of the node are not known yet",
        f"roles/{role}/meta/argument_specs.yml",
    )


def _of_python(values: Mapping[str, Any]) -> list[Finding]:
    """Whether a known release has a lock for the Python minor version."""
    release, version = values.get("sglang_release"), values.get("sglang_python_version")
    if release not in releases.RELEASES or version is None:
        return []
    return releases.check(release, version)


def _of_toolkit(values: Mapping[str, Any]) -> list[Finding]:
    release = releases.RELEASES.get(str(values.get("sglang_release")))
    wanted = toolkit_rules.wanted(values, release.cuda if release else "")
    return toolkit_rules.judge(wanted) if wanted else []


def _of_repository(values: Mapping[str, Any], task_vars: Mapping[str, Any]) -> list[Finding]:
    """The key of the repository, where a role installs from it."""
    needed = values.get("nvidia_driver_manage") or values.get("cuda_toolkit_method") == toolkit_rules.APT
    if not needed or "cuda_repository_key" not in values:
        return []
    return apt_keys.judge(
        values["cuda_repository_key"], (task_vars.get("inventory_dir"), task_vars.get("playbook_dir"))
    )


def _of_patches(values: Mapping[str, Any], task_vars: Mapping[str, Any]) -> list[Finding]:
    """The chosen patches, each by itself and, for a known release, all together."""
    release = values.get("sglang_release")
    folders = [task_vars.get("inventory_dir"), task_vars.get("playbook_dir")]
    return role_files.patch_definitions(
        values.get("sglang_patches", []), release if release in releases.RELEASES else None, folders
    )[1]


def _locks(values: Mapping[str, Any]) -> dict[str, Any]:
    """Digests of the locks that the settings lead to, as ``preflight`` takes them."""
    release, toolkit = values.get("sglang_release"), values.get("cuda_toolkit_version")
    if values.get("cuda_toolkit_method") != toolkit_rules.WHEELS:
        toolkit = None
    locks = (
        {python: role_files.lock(release, python) for python in releases.RELEASES[release].pythons} if release else {}
    )
    return {
        "release": {python: wheels.digest(lock) for python, lock in locks.items()},
        "toolkit": wheels.digest(role_files.toolkit_lock(toolkit)) if toolkit else "",
    }
