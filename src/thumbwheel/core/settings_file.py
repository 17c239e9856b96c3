"""Changes one setting in the text of a YAML file. Comments, order and spelling of everything else
stay as they are.

PyYAML says where a value stands; only these characters are replaced. Afterwards the text is read
again and compared with the intended content, so an alias or a duplicate key is refused rather than
changed by accident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import ConfigError

if TYPE_CHECKING:
    from yaml.nodes import MappingNode, Node

INDENT = 2
Scalar = bool | int | float | str


def with_setting(text: str, path: Sequence[str], value: Scalar) -> str:
    """Return the text with the value at `path` (the keys from the top level down) set. Raises
    ConfigError if that cannot be done without changing anything else.

    >>> with_setting("gate:  # strict\\n  alpha: 0.05  # 5 %\\n", ["gate", "alpha"], 0.1)
    'gate:  # strict\\n  alpha: 0.1  # 5 %\\n'
    """
    parents = _parents(text, path)
    if len(parents) == len(path):
        entry = _entry(parents[-1], path[-1])
        if entry is not None:
            changed = _replaced(text, path, entry[1], value)
            return _checked(text, changed, path, value)
    changed = _inserted(text, path, parents, value)
    return _checked(text, changed, path, value)


def without_setting(text: str, path: Sequence[str]) -> str:
    """Return the text without the setting at `path`, and without sections that held nothing else.
    Raises ConfigError if the text has no such setting, or has it in a mapping on one line.

    >>> without_setting("log:\\n  form: json\\ngate:\\n  alpha: 0.1\\n", ["log", "form"])
    'gate:\\n  alpha: 0.1\\n'
    """
    parents = _parents(text, path)
    if len(parents) < len(path) or _entry(parents[-1], path[-1]) is None:
        raise ConfigError(_name(path), "the file does not set it", "Reload the page")
    depth = len(path) - 1
    while depth and len(parents[depth].value) == 1:
        depth -= 1
    parent = parents[depth]
    if parent.flow_style:
        raise _unchangeable(path, "its section is written in braces")
    entry = _entry(parent, path[depth])
    if entry is None:
        raise _unchangeable(path, "its section is written twice")
    key, node = entry
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    changed = text[:start] + text[_line_end(text, _last_leaf(node)) :]
    return _checked(text, changed, path[: depth + 1], None)


def _parents(text: str, path: Sequence[str]) -> list[MappingNode]:
    """Return the mappings in which the keys of `path` stand, from the top level down, as far as
    the text has them."""
    import yaml

    node = yaml.compose(text, Loader=yaml.SafeLoader)
    parents: list[MappingNode] = []
    for key in path:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            break
        parents.append(node)
        entry = _entry(node, key)
        if entry is None:
            break
        node = entry[1]
    return parents


def _entry(mapping: MappingNode, key: str) -> tuple[Node, Node] | None:
    for key_node, node in mapping.value:
        if key_node.value == key:
            return key_node, node
    return None


def _replaced(text: str, path: Sequence[str], node: Node, value: Scalar) -> str:
    from yaml import ScalarNode

    if not isinstance(node, ScalarNode) or node.style in ("|", ">"):
        raise _unchangeable(path, "its value stands on several lines")
    start, end = node.start_mark.index, node.end_mark.index
    space = " " if start == end else ""  # after `name:` without a value
    return text[:start] + space + _dumped(value) + text[end:]


def _inserted(text: str, path: Sequence[str], parents: Sequence[MappingNode], value: Scalar) -> str:
    """Return the text with a new last entry in the innermost mapping of `path` that exists."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if not parents:
        prefix = text if not text or text.endswith("\n") else text + newline
        return prefix + _lines(path, value, 0, newline)
    depth = len(parents) - 1
    parent = parents[depth]
    if parent.flow_style:
        if len(path) > depth + 1:
            raise _unchangeable(path, "its section is written in braces")
        start = parent.start_mark.index + 1
        return f"{text[:start]}{path[-1]}: {_dumped(value)}, {text[start:]}"
    entry = _entry(parent, path[depth])
    if entry is not None:
        # `section:` without a value, or with {}: the new lines become its value
        key, node = entry
        start, end = node.start_mark.index, node.end_mark.index
        text = text[:start].rstrip(" ") + text[end:]
        line_end = text.find("\n", key.end_mark.index)
        line_end = len(text) if line_end < 0 else line_end + 1
        column, remaining = key.start_mark.column + INDENT, path[depth + 1 :]
    else:
        line_end = _line_end(text, _last_leaf(parent))
        column, remaining = parent.start_mark.column, path[depth:]
    head = text[:line_end]
    if not head.endswith("\n"):
        head += newline
    return head + _lines(remaining, value, column, newline) + text[line_end:]


def _lines(path: Sequence[str], value: Scalar, column: int, newline: str) -> str:
    lines = []
    for depth, key in enumerate(path[:-1]):
        lines.append(f"{' ' * (column + INDENT * depth)}{key}:{newline}")
    indent = " " * (column + INDENT * (len(path) - 1))
    lines.append(f"{indent}{path[-1]}: {_dumped(value)}{newline}")
    return "".join(lines)


def _last_leaf(node: Node) -> Node:
    """Return the last node of a block: the end of the block itself is after trailing comments."""
    from yaml import MappingNode, SequenceNode

    while not getattr(node, "flow_style", True) and node.value:
        if isinstance(node, MappingNode):
            node = node.value[-1][1]
        elif isinstance(node, SequenceNode):
            node = node.value[-1]
    return node


def _line_end(text: str, leaf: Node) -> int:
    """Return where the line of a leaf ends, with its comment and line break."""
    end = leaf.end_mark
    if end.column == 0 and end.index:
        return int(end.index)  # a text block ends with its line break
    line_end = text.find("\n", end.index)
    return len(text) if line_end < 0 else line_end + 1


def _dumped(value: Scalar) -> str:
    import yaml

    dumped = yaml.safe_dump(value, allow_unicode=True, width=2**31)
    return str(dumped).removesuffix("\n").removesuffix("\n...")


def _checked(text: str, changed: str, path: Sequence[str], value: Scalar | None) -> str:
    """Return the changed text if it means what `text` means with this change, `None` being no
    setting. Raises ConfigError otherwise."""
    import yaml

    expected: dict[str, Any] = _unshared(yaml.safe_load(text) or {})
    section: dict[str, Any] = expected
    for key in path[:-1]:
        if section.get(key) is None:
            section[key] = {}
        section = section[key]
    if value is None:
        del section[path[-1]]
    else:
        section[path[-1]] = value
    try:
        content = yaml.safe_load(changed) or {}
    except yaml.YAMLError:
        content = None
    if content != expected or not _have_equal_types(content, expected):
        raise _unchangeable(path, "its section uses a form of YAML that changes more than it")
    return changed


def _unshared(content: Any) -> Any:
    """Return a copy in which an alias no longer is the same object as its anchor."""
    if isinstance(content, Mapping):
        return {key: _unshared(part) for key, part in content.items()}
    if isinstance(content, list):
        return [_unshared(part) for part in content]
    return content


def _have_equal_types(content: Any, expected: Any) -> bool:
    """Return whether two equal values also agree in `1`, `1.0` and `true`, which Python holds
    equal."""
    if isinstance(expected, Mapping):
        return all(_have_equal_types(content[key], part) for key, part in expected.items())
    if isinstance(expected, list):
        return all(map(_have_equal_types, content, expected))
    return type(content) is type(expected)


def _name(path: Sequence[str]) -> str:
    return f"setting {'.'.join(path)!r}"


def _unchangeable(path: Sequence[str], why: str) -> ConfigError:
    return ConfigError(_name(path), why, "Change it in the file itself")
