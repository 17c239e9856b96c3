"""Tables of variants: the built-in ones by name, the plugins' by an entry-point group.

A table maps a name to "module:attribute", so that listing names imports none of them. An installed
package brings variants by entry points. The plugins in our own source tree bring them by IN_TREE:
entry points of our own would be seen only after the next installation.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

from thumbwheel.core.errors import NotFound

T = TypeVar("T")
IN_TREE = "thumbwheel.compat.variants"
"""The module whose VARIANTS are entry points: group -> name -> "module:attribute"."""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"`, or an empty text if no candidate is similar to `word`.

    >>> nearest("prefrence", ["preference", "jsonl"])
    " Did you mean 'preference'?"
    """
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""


class VariantTable(Generic[T]):
    """The variants of one kind. `kind` is shown to people, `group` is the entry-point group."""

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind, self.group, self._built_in = kind, group, dict(built_in)

    @cached_property
    def locations(self) -> dict[str, str]:
        """name -> "module:attribute", built-in first; a plugin cannot replace a name of ours."""
        in_tree: Mapping[str, str] = import_module(IN_TREE).VARIANTS.get(self.group, {})
        ours = {**self._built_in, **in_tree}
        installed = {point.name: point.value for point in entry_points(group=self.group)}
        return ours | {name: location for name, location in installed.items() if name not in ours}

    def names(self) -> list[str]:
        """Return all known names, built-in first."""
        return list(self.locations)

    def get(self, name: str) -> T:
        """Return the variant called `name`. Raises NotFound with the known names and the nearest
        one."""
        if name not in self.locations:
            raise NotFound(
                f"{self.kind} {name!r}",
                f"there is no {self.kind} of that name",
                f"Known: {', '.join(self.locations)}.{nearest(name, self.locations)}",
            )
        module, _, attribute = self.locations[name].partition(":")
        variant = getattr(import_module(module), attribute)
        return cast("T", variant)
