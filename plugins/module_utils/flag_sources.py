# Copyright: The inference.sglang contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The flag table of an SGLang release, read from its sources with ``ast``: nothing is imported or run.

So it can be made for a release without installing it, shipped for a bare node, and read again where the release is
installed; the two must agree.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.inference.sglang.plugins.module_utils.flags import Flag, FlagTable, Kind


def read_sources(sglang_dir: Path) -> FlagTable:
    """Read the flags of the SGLang whose package folder this is (it holds ``srt/server_args.py``).

    Both of SGLang's ways to declare flags are read: ``parser.add_argument("--pp-size", …)`` in a class's
    ``add_cli_args`` (all of 0.5.12.post1, a few of 0.5.23), and annotated fields, ``pp_size: A[int, "…"] = 1``.
    Nothing is imported or run. Choices and defaults that are not written there are marked (``Flag.runtime``).
    Raises OSError if the files are not there, ValueError for a declaration that this reader does not understand.
    """
    sources = _Sources(sglang_dir)
    srt = sglang_dir / "srt"
    owners: list[tuple[ast.ClassDef, _Scope]] = []
    for path in (srt / "server_args.py", *sorted((srt / "arg_groups").rglob("*.py"))):
        scope = sources.file(path)
        owners += ((node, scope) for node in scope.body if isinstance(node, ast.ClassDef))
    flags: list[Flag] = []
    for owner, scope in owners:
        # A field that is declared twice is what its last declaration says.
        fields = {ast.unparse(node.target): node for node in owner.body if isinstance(node, ast.AnnAssign)}
        for name, field in fields.items():
            if field.value is not None:
                sources.defaults[name] = (field.value, scope)
            flags += _read(_annotated, field, scope)
    for owner, scope in owners:
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
                flags += _read(_registered, node, scope)
    if not flags:
        raise ValueError(f"No flags in {srt / 'server_args.py'}")
    return FlagTable(flags)


def read_parser(actions: Iterable[Mapping[str, Any]]) -> FlagTable:
    """The table of a real argparse parser, as ``roles/sglang/files/import_release.py`` reports its actions.

    It lacks what argparse does not know: SGLang's words on deprecated flags and what takes their place.
    """
    return FlagTable(
        Flag(
            name=action["names"][0],
            aliases=tuple(action["names"][1:]),
            kind=_kind(action["nargs"]),
            type="bool" if action["nargs"] == 0 else _TYPES.get(action["type"], action["type"]),
            choices=None if action["choices"] is None else tuple(action["choices"]),
            default=action["default"],
            refused=" ".join(action["refused"].split()),
            hidden=action["hidden"],
            bare=action["nargs"] == "?",
        )
        for action in actions
    )


def differences(found: FlagTable, shipped: FlagTable) -> list[str]:
    """In what two tables of one release differ, one entry a flag: ``--x is not found``, ``--y: choices``.

    Choices are compared as sets. What either leaves to the run is not compared; deprecations only where both name them.
    """
    told = [f"{name} is only shipped" for name in sorted(shipped.keys() - found.keys())]
    told += [f"{name} is only found" for name in sorted(found.keys() - shipped.keys())]
    worded = any(flag.deprecated for flag in found.flags)
    for flag in shipped.flags:
        if (other := found.get(flag.name)) is None:
            continue
        ignored = {"runtime", *flag.runtime, *other.runtime} | (set() if worded else {"deprecated", "replacement"})
        unequal = [
            field.name
            for field in dataclasses.fields(Flag)
            if field.name not in ignored and _comparable(flag, field.name) != _comparable(other, field.name)
        ]
        if unequal:
            told.append(f"{flag.name}: {', '.join(unequal)}")
    return told


def _comparable(flag: Flag, name: str) -> object:
    value = getattr(flag, name)
    return sorted(map(str, value)) if name == "choices" and value is not None else value


def _read(how: Callable[[Any, _Scope], list[Flag]], node: ast.stmt, scope: _Scope) -> list[Flag]:
    """Read one declaration; a ValueError says where it stands."""
    try:
        return how(node, scope)
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{scope.path}, from line {node.lineno} on, this is not understood: {error}") from error


class _UnknownError(ValueError):
    """The value is not written in the sources: it depends on the run."""


class _Sources:
    """The modules of one SGLang package, parsed when a name leads to them."""

    def __init__(self, sglang_dir: Path) -> None:
        self.root = sglang_dir
        self.scopes: dict[Path, _Scope] = {}
        self.classes: dict[ast.ClassDef, _Scope] = {}
        # field of a class that declares flags -> its default
        self.defaults: dict[str, tuple[ast.expr, _Scope]] = {}

    def file(self, path: Path) -> _Scope:
        if path not in self.scopes:
            self.scopes[path] = _Scope(ast.parse(path.read_text(encoding="utf-8")).body, self, path=path)
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

    def __init__(
        self, body: list[ast.stmt], sources: _Sources, parent: _Scope | None = None, path: Path | None = None
    ) -> None:
        self.body = body
        self.sources = sources
        self.parent = parent
        self.path: Path | None = path or (parent.path if parent else None)
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
        case ast.Call(func=ast.Name(id="_declared_default"), args=[ast.Constant(value=str(name))]):
            if name in scope.sources.defaults:
                return _value(*scope.sources.defaults[name])
        case ast.Call(func=ast.Name() as function, args=[], keywords=[]) if function.id.endswith("_choices"):
            definition, outside = _definition(function, scope)
            # An earlier ``return`` of SGLang's is for names that a plug-in has registered.
            if isinstance(definition, ast.FunctionDef) and isinstance(last := definition.body[-1], ast.Return):
                return _value(last.value or ast.Constant(None), _Scope(definition.body, scope.sources, outside))
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
    """The flags of ``parser.add_argument("--name", …)`` calls, each a statement of its own."""
    scope = _Scope(function.body, module.sources, module)
    parser = function.args.args[-1].arg
    flags = []
    for statement in function.body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="add_argument")) as call):
                if owner != parser:
                    raise _UnknownError(ast.unparse(call.func))
                flags.append(_flag([_value(name, scope) for name in call.args], _keywords(call), scope))
            case ast.Expr(value=ast.Call(func=ast.Name(id="add_cli_args_from_dataclass"), keywords=[])):
                pass  # the annotated fields, which are read where they are declared
            case _ if any(isinstance(node, ast.Name) and node.id == parser for node in ast.walk(statement)):
                raise _UnknownError(ast.unparse(statement))
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
        if isinstance(entry, ast.Call) and ast.unparse(entry.func) == "Arg" and not entry.args:
            argument = _keywords(entry)
        elif not (isinstance(entry, ast.Call) and ast.unparse(entry.func) == "NS"):
            _help(entry, scope)
            argument = {"help": entry}
        if argument is not None:
            break
    if argument is None or ("no_cli" in argument and _value(argument["no_cli"], scope)):
        return []
    default_name = "--" + field.target.id.replace("_", "-")
    names = [_value(argument["cli_name"], scope) if "cli_name" in argument else default_name]
    names += _value(argument["aliases"], scope) if "aliases" in argument else []
    if field.value is not None:
        argument["default"] = field.value
    if "action_kwargs" in argument:
        extra = argument.pop("action_kwargs")
        if not isinstance(extra, ast.Dict) or None in extra.keys:
            raise _UnknownError(ast.unparse(extra))
        argument |= {_value(key, scope): value for key, value in zip(extra.keys, extra.values, strict=True) if key}
    if "action" not in argument:
        argument |= _argument_of_type(kind, argument, scope)
    return [_flag(names, argument, scope)]


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

# What converts the argument, by the name in the sources and by that of the function.
_TYPES = {
    "json.loads": "json",
    "loads": "json",
    "json_list_type": "json",
    "parse_cuda_graph_config_arg": "json",
    "nullable_str": "str",
}


def _kind(nargs: object) -> Kind:
    return "switch" if nargs == 0 else "value" if nargs in (None, "?") else "list"


def _flag(names: list[str], argument: Mapping[str, ast.expr], scope: _Scope) -> Flag:
    """The flag that argparse makes of ``add_argument(*names, **argument)``."""
    action = ast.unparse(argument["action"]).strip("'") if "action" in argument else ""
    runtime: list[str] = []

    def decided(name: str) -> Any:
        """Choices or a default; None, and a mark, where they are not written in the sources."""
        if name not in argument:
            return _parameter_of_action(name, action, argument, scope) if name == "default" else None
        if ast.unparse(argument[name]) == "argparse.SUPPRESS":
            return None  # the attribute is left out: whoever reads it has the default of the flag that it stands for
        try:
            return _value(argument[name], scope)
        except (_UnknownError, LookupError, TypeError):
            runtime.append(name)
            return None

    nargs = (
        _value(argument["nargs"], scope)
        if "nargs" in argument
        else _parameter_of_action("nargs", action, argument, scope)
    )
    if action == "argparse.BooleanOptionalAction":
        names = [*names, *("--no-" + name[2:] for name in names)]
    kind = _kind(nargs)
    type_name = ast.unparse(argument["type"]) if "type" in argument else "str"
    choices, default = decided("choices"), decided("default")
    text = _help(argument["help"], scope) if "help" in argument else ""
    refused = _help(argument["error_message"], scope) if "error_message" in argument else ""
    deprecated = "Deprecated" in action or re.match(r"\W*deprecated\b", text, re.IGNORECASE)
    return Flag(
        name=names[0],
        aliases=tuple(names[1:]),
        kind=kind,
        type="bool" if kind == "switch" else _TYPES.get(type_name, type_name),
        choices=None if choices is None else tuple(choices),
        default=default,
        deprecated=(text or "Deprecated") if deprecated and not refused else "",
        replacement=_value(argument["new_flag"], scope) if "new_flag" in argument else "",
        refused=refused,
        hidden="help" in argument and ast.unparse(argument["help"]) == "argparse.SUPPRESS",
        bare=nargs == "?",
        runtime=tuple(runtime),
    )


def _help(node: ast.expr, scope: _Scope) -> str:
    """A help text without line breaks; what it takes from elsewhere is an ellipsis, and a hidden one is empty."""
    match node:
        case ast.Attribute() if ast.unparse(node) == "argparse.SUPPRESS":
            return ""
        case ast.JoinedStr():
            parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            text = "".join(parts)
        case ast.BinOp(op=ast.Add()):
            text = _help(node.left, scope) + " " + _help(node.right, scope)
        case _:
            text = _value(node, scope)
            if not isinstance(text, str):
                raise _UnknownError(ast.unparse(node))
    return " ".join(text.split())


def _parameter_of_action(name: str, action: str, argument: Mapping[str, ast.expr], scope: _Scope) -> Any:
    """What an action gives ``nargs`` (0: stands alone, None: one argument) or ``default`` if the call does not."""
    if action in _STANDALONE:
        return 0 if name == "nargs" else _STANDALONE[action]
    if not action:
        return None
    definition, action_scope = _definition(argument["action"], scope)
    if not isinstance(definition, ast.ClassDef):
        raise _UnknownError(f"the action {action}")
    for method in definition.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            parameters = method.args.args[len(method.args.args) - len(method.args.defaults) :]
            for parameter, default in zip(parameters, method.args.defaults, strict=True):
                if parameter.arg == name:
                    return _value(default, action_scope)
    return None
