# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The flag table of an SGLang release, read from its sources with ``ast``: nothing is imported or run.

So it can be made for a release without installing it, shipped for a bare node, and read again where the release is
installed; the two must agree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils.flags import Flag, FlagTable, Kind


def read_sources(sglang_dir: Path) -> FlagTable:
    """Read the flags of the SGLang whose package folder this is (it holds ``srt/server_args.py``).

    Both of SGLang's ways to declare flags are read: ``parser.add_argument("--pp-size", …)`` in a class's
    ``add_cli_args`` (all of 0.5.12.post1, a few of 0.5.23), and annotated fields, ``pp_size: A[int, "…"] = 1``.
    Nothing is imported or run. Raises OSError if the files are not there, ValueError if no flags can be read.
    """
    sources = _Sources(sglang_dir)
    srt = sglang_dir / "srt"
    flags: list[Flag] = []
    for path in (srt / "server_args.py", *sorted((srt / "arg_groups").rglob("*.py"))):
        scope = sources.file(path)
        for owner in scope.body:
            if not isinstance(owner, ast.ClassDef):
                continue
            for node in owner.body:
                if isinstance(node, ast.AnnAssign):
                    flags += _annotated(node, scope)
                elif isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
                    flags += _registered(node, scope)
    if not flags:
        raise ValueError(f"No flags in {srt / 'server_args.py'}")
    return FlagTable(flags)


class _UnknownError(ValueError):
    """The value is not written in the sources: it depends on the run."""


class _Sources:
    """The modules of one SGLang package, parsed when a name leads to them."""

    def __init__(self, sglang_dir: Path) -> None:
        self.root = sglang_dir
        self.scopes: dict[Path, _Scope] = {}
        self.classes: dict[ast.ClassDef, _Scope] = {}

    def file(self, path: Path) -> _Scope:
        if path not in self.scopes:
            self.scopes[path] = _Scope(ast.parse(path.read_text(encoding="utf-8")).body, self)
        return self.scopes[path]

    def module(self, dotted: str) -> _Scope:
        package, *parts = dotted.split(".")
        path = self.root.joinpath(*parts)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if package == "sglang" and candidate.is_file():
                return self.file(candidate)
        raise _UnknownError(dotted)


class _Scope:
    """The names of a module, class or function.

    The value of a name that is bound twice, or changed in place (``choices.add("x")``), depends on the run.
    """

    def __init__(self, body: list[ast.stmt], sources: _Sources, parent: _Scope | None = None) -> None:
        self.body = body
        self.sources = sources
        self.parent = parent
        self.names: dict[str, ast.AST] = {}
        self.changed: set[str] = set()
        for node in _own_nodes(body):
            for name, meaning in _bindings(node):
                if name in self.names:
                    self.changed.add(name)
                self.names[name] = meaning
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if isinstance(node.func.value, ast.Name) and node.func.attr not in ("keys", "values", "items"):
                    self.changed.add(node.func.value.id)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                self.changed.add(node.target.id)

    def find(self, name: str) -> tuple[ast.AST, _Scope]:
        if name in self.changed:
            raise _UnknownError(name)
        meaning = self.names.get(name)
        if isinstance(meaning, ast.ImportFrom):
            original = next(alias.name for alias in meaning.names if name in (alias.asname, alias.name))
            return self.sources.module(meaning.module or "").find(original)
        if meaning is not None:
            return meaning, self
        if self.parent is None:
            raise _UnknownError(name)
        return self.parent.find(name)


def _own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of a body without those inside its functions and classes."""
    for node in body:
        yield node
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own_nodes(ast.iter_child_nodes(node))


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name, node
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, node
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value


def _definition(node: ast.AST, scope: _Scope) -> tuple[ast.AST, _Scope]:
    """Follow names, imports and class attributes to the expression or class that they stand for."""
    while True:
        if isinstance(node, ast.Name):
            node, scope = scope.find(node.id)
        elif isinstance(node, ast.Attribute):
            owner, owner_scope = _definition(node.value, scope)
            if not isinstance(owner, ast.ClassDef):
                raise _UnknownError(ast.unparse(node))
            classes = scope.sources.classes
            attributes = classes.setdefault(owner, classes.get(owner) or _Scope(owner.body, scope.sources, owner_scope))
            if node.attr not in attributes.names:
                raise _UnknownError(ast.unparse(node))
            node, scope = attributes.find(node.attr)
        else:
            return node, scope


def _value(node: ast.AST, scope: _Scope) -> Any:
    """The constant that an expression stands for; sets are sorted, other sequences are lists."""
    node, scope = _definition(node, scope)
    match node:
        case ast.Constant():
            return node.value
        case ast.List() | ast.Tuple() | ast.Set():
            items: list[Any] = []
            for element in node.elts:
                if isinstance(element, ast.Starred):
                    items += _value(element.value, scope)
                else:
                    items.append(_value(element, scope))
            return sorted(items) if isinstance(node, ast.Set) else items
        case ast.Dict(keys=[]):
            return {}
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, scope)
        case ast.BinOp(op=ast.Add()):
            return _value(node.left, scope) + _value(node.right, scope)
        case ast.BinOp(op=ast.Mult()):
            return _value(node.left, scope) * _value(node.right, scope)
        case ast.Subscript():
            return _value(node.value, scope)[_value(node.slice, scope)]
        case ast.Lambda():
            return _value(node.body, scope)
        case ast.Call(func=ast.Attribute(attr="keys") as method, args=[]):
            mapping, mapping_scope = _definition(method.value, scope)
            if isinstance(mapping, ast.Dict) and None not in mapping.keys:
                return [_value(key, mapping_scope) for key in mapping.keys if key is not None]
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[sequence]):
            return list(_value(sequence, scope))
        case ast.Call(func=ast.Name(id="set" | "frozenset" | "sorted"), args=[sequence]):
            return sorted(_value(sequence, scope))
        case ast.Call(func=ast.Name(id="field") | ast.Attribute(attr="field")):
            keywords = _keywords(node)
            if "default" in keywords:
                return _value(keywords["default"], scope)
            factory = keywords.get("default_factory")
            if isinstance(factory, ast.Name) and factory.id in ("list", "dict"):
                return [] if factory.id == "list" else {}
            if isinstance(factory, ast.Lambda):
                return _value(factory, scope)
    raise _UnknownError(ast.unparse(node))


def _constant(node: ast.AST | None, scope: _Scope, otherwise: Any = None) -> Any:
    if node is None:
        return otherwise
    try:
        return _value(node, scope)
    except (_UnknownError, LookupError, TypeError):
        return otherwise


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}


def _registered(function: ast.FunctionDef, module: _Scope) -> list[Flag]:
    """The flags of ``parser.add_argument("--name", …)`` calls."""
    scope = _Scope(function.body, module.sources, module)
    flags = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [_value(name, scope) for name in node.args]
            flags += _flag(names, _keywords(node), scope)
    return flags


def _annotated(field: ast.AnnAssign, scope: _Scope) -> list[Flag]:
    """The flag of a field ``name: A[type, "help"] = default`` or ``name: A[type, Arg(help=…, …)] = default``."""
    annotation = field.annotation
    if not (
        isinstance(field.target, ast.Name)
        and isinstance(annotation, ast.Subscript)
        and ast.unparse(annotation.value) in ("A", "Annotated", "typing.Annotated")
        and isinstance(annotation.slice, ast.Tuple)
    ):
        return []
    kind, *metadata = annotation.slice.elts
    argument: dict[str, ast.expr] | None = None
    for entry in metadata:
        if isinstance(entry, ast.Call) and ast.unparse(entry.func) == "Arg":
            argument = _keywords(entry)
        elif isinstance(_constant(entry, scope), str):
            argument = {"help": entry}
        if argument is not None:
            break
    if argument is None or _constant(argument.get("no_cli"), scope):
        return []
    names = [
        _constant(argument.get("cli_name"), scope) or "--" + field.target.id.replace("_", "-"),
        *_constant(argument.get("aliases"), scope, []),
    ]
    if field.value is not None:
        argument["default"] = field.value
    extra = argument.get("action_kwargs")
    if isinstance(extra, ast.Dict):
        argument |= {
            str(_constant(key, scope)): value for key, value in zip(extra.keys, extra.values, strict=True) if key
        }
    if "action" not in argument:
        argument |= _argument_of_type(kind, argument, scope)
    return _flag(names, argument, scope)


def _argument_of_type(kind: ast.expr, argument: dict[str, ast.expr], scope: _Scope) -> dict[str, ast.expr]:
    """What SGLang derives from a field's type for argparse (``arg_groups/arg_utils.py``)."""
    derived: dict[str, ast.expr] = {}
    kind = _without_alias(_without_none(kind), scope)
    outer = ast.unparse(kind.value).rpartition(".")[2] if isinstance(kind, ast.Subscript) else ast.unparse(kind)
    if outer == "bool":
        return {"action": ast.Constant("store_true")}
    if outer == "Literal" and isinstance(kind, ast.Subscript):
        values = kind.slice if isinstance(kind.slice, ast.Tuple) else ast.Tuple([kind.slice])
        derived["choices"] = values
        kind = ast.Name(type(_constant(values.elts[0], scope)).__name__)
    elif outer in ("List", "list") and isinstance(kind, ast.Subscript) and "type_parser" not in argument:
        derived["nargs"] = ast.Constant("+")
        kind = kind.slice
    plain = ast.unparse(kind) in ("str", "int", "float")
    derived["type"] = argument.get("type_parser", kind if plain else ast.Name("str"))
    return {key: value for key, value in derived.items() if key not in argument}


def _without_alias(kind: ast.expr, scope: _Scope) -> ast.expr:
    """The ``Literal[…]`` or ``List[…]`` that a name stands for."""
    try:
        definition = _definition(kind, scope)[0]
    except _UnknownError:
        return kind
    return definition if isinstance(definition, ast.Subscript) else kind


def _without_none(kind: ast.expr) -> ast.expr:
    """``X`` of ``Optional[X]``, ``Union[X, None]`` and ``X | None``."""
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value).rpartition(".")[2] in ("Optional", "Union"):
        parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
    elif isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        parts = [_without_none(kind.left), _without_none(kind.right)]
    else:
        return kind
    some = [part for part in parts if ast.unparse(part) != "None"]
    return some[0] if len(some) == 1 else kind


# argparse's actions that take no argument, and their defaults.
_STANDALONE = {"store_true": False, "store_false": True, "store_const": None, "argparse.BooleanOptionalAction": None}

_TYPES = {"json.loads": "json", "json_list_type": "json", "nullable_str": "str"}


def _flag(names: list[str], argument: Mapping[str, ast.expr], scope: _Scope) -> list[Flag]:
    """The flag that argparse makes of ``add_argument(*names, **argument)``; none if SGLang itself refuses it."""
    if _constant(argument.get("error_message"), scope):
        return []
    action = ast.unparse(argument["action"]).strip("'") if "action" in argument else ""
    nargs, default = (
        _constant(argument[key], scope) if key in argument else _parameter_of_action(key, action, argument, scope)
        for key in ("nargs", "default")
    )
    if action == "argparse.BooleanOptionalAction":
        names = [*names, *("--no-" + name[2:] for name in names)]
    kind: Kind = "switch" if nargs == 0 else "value" if nargs in (None, "?") else "list"
    type_name = ast.unparse(argument["type"]) if "type" in argument else "str"
    choices = _constant(argument.get("choices"), scope)
    help_text = " ".join(str(_constant(argument.get("help"), scope, "")).split())
    deprecated = "Deprecated" in action or re.match(r"\W*deprecated\b", help_text, re.IGNORECASE)
    return [
        Flag(
            name=names[0],
            aliases=tuple(names[1:]),
            kind=kind,
            type="bool" if kind == "switch" else _TYPES.get(type_name, type_name),
            choices=None if choices is None else tuple(choices),
            default=default,
            deprecated=(help_text or "no longer used") if deprecated else "",
            bare=nargs == "?",
        )
    ]


def _parameter_of_action(name: str, action: str, argument: Mapping[str, ast.expr], scope: _Scope) -> Any:
    """What an action gives ``nargs`` (0: stands alone, None: one argument) or ``default`` if the call does not."""
    if action in _STANDALONE:
        return 0 if name == "nargs" else _STANDALONE[action]
    if not action or isinstance(argument["action"], ast.Constant):
        return None
    definition, action_scope = _definition(argument["action"], scope)
    for method in definition.body if isinstance(definition, ast.ClassDef) else []:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            parameters = method.args.args[len(method.args.args) - len(method.args.defaults) :]
            for parameter, default in zip(parameters, method.args.defaults, strict=True):
                if parameter.arg == name:
                    return _constant(default, action_scope)
    return None
