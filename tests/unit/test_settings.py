# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names and values of the roles' variables."""

from __future__ import annotations

import pytest
from ansible_collections.inference.sglang.plugins.module_utils import settings

SPECS = {
    "sglang": {"sglang_release": {"type": "str"}, "sglang_root": {"type": "path"}},
    "sglang_server": {"sglang_server_port": {"type": "int"}, "sglang_server_flags": {"type": "dict"}},
    "model_weights": {"model_weights_path": {"type": "path", "required": True}},
}


def test_the_longest_prefix_names_the_role():
    assert settings.role_of("sglang_server_port", SPECS) == "sglang_server"
    assert settings.role_of("sglang_port", SPECS) == "sglang"
    assert settings.role_of("sglangport", SPECS) is None


def test_a_misspelt_variable_gets_the_nearest_name_of_any_role():
    (finding,) = settings.unknown(SPECS, ["sglang_sever_port", "sglang_release"])
    assert (finding.id, finding.severity) == ("settings.unknown", "error")
    assert "sglang_sever_port carries the prefix of role sglang" in finding.seen
    assert "sglang_server_port" in finding.remedy
    assert finding.source == "roles/sglang_server/meta/argument_specs.yml"


def test_an_unknown_variable_without_a_neighbour_is_to_be_removed():
    (finding,) = settings.unknown(SPECS, ["sglang_xyzzy_qqq"])
    assert finding.remedy == "Remove it"
    assert finding.source == "roles/sglang/meta/argument_specs.yml"


def test_internal_names_and_names_of_others_are_free():
    assert not settings.unknown(SPECS, ["__sglang_server_port", "nginx_port", "ansible_host", "sglang_release"])


def test_a_misspelt_prefix_is_worth_a_warning():
    (finding,) = settings.unknown(SPECS, ["model_weight_path"])
    assert (finding.id, finding.severity) == ("settings.similar", "warning")
    assert "model_weights_path" in finding.remedy


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("str", ["a"]),
        ("str", True),
        ("str", 13.0),
        ("path", {"a": 1}),
        ("int", True),
        ("list", "a"),
        ("list", 1),
        ("dict", '{"a": 1}'),
    ],
    ids=str,
)
def test_what_ansible_would_convert_quietly_is_refused(kind, value):
    (finding,) = settings.misread("sglang_root", {"type": kind}, value)
    assert finding.id == "settings.type"
    assert f"is of type {type(value).__name__}" in finding.seen


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("str", 13.0, "in quotes"),
        ("list", "a", """a YAML list, or on the command line -e '{"sglang_x": ["..", ".."]}'"""),
        ("dict", "a", """a YAML mapping, or on the command line -e '{"sglang_x": {"..": ".."}}'"""),
    ],
)
def test_the_remedy_tells_how_to_write_it(kind, value, says):
    (finding,) = settings.misread("sglang_x", {"type": kind}, value)
    assert finding.remedy.endswith(says)


@pytest.mark.parametrize("value", ["org/some-model", "~/model", "models/x", ""])
def test_a_path_begins_at_the_root(value):
    (finding,) = settings.misread("model_weights_path", {"type": "path"}, value)
    assert finding.id == "settings.path"
    assert not settings.misread("model_weights_path", {"type": "path"}, "/srv/model")


def test_a_value_that_may_hold_a_secret_is_not_shown():
    (finding,) = settings.misread("sglang_server_key", {"type": "str"}, ["hunter2"])
    assert "hunter2" not in str(finding)


@pytest.mark.parametrize(("kind", "value"), [("str", "a"), ("str", 13), ("int", "8"), ("int", 8), ("bool", "false")])
def test_strings_of_the_command_line_are_fine(kind, value):
    assert not settings.misread("sglang_root", {"type": kind}, value)


def test_null_is_wrong_where_something_is_needed():
    assert [f.id for f in settings.misread("sglang_root", {"type": "path"}, None, "/opt/sglang")] == ["settings.empty"]
    assert [f.id for f in settings.misread("model_weights_path", {"required": True}, None)] == ["settings.empty"]
    assert not settings.misread("sglang_server_key", {"type": "str"}, None)
