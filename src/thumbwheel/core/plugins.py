"""Tables of variants: the built-in ones by name, the plugins' by an entry-point group.

A table maps a name to "module:attribute", so that listing names imports none of them. An installed
package brings variants by entry points. `variants_of_extras.toml` lists the names that our own
extras bring, so that an error can name the extra that is missing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar, cast

from thumbwheel.core.errors import NotFound

T = TypeVar("T")
VARIANTS_OF_EXTRAS = Path(__file__).with_name("variants_of_extras.toml")


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"`, or an empty text if no candidate is similar to `word`.

    >>> nearest("prefrence", ["preference", "jsonl"])
    " Did you mean 'preference'?"
    """
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def missing_variant(kind: str, group: str, name: str) -> NotFound | None:
    """Return the error for a variant that an extra of ours brings, None for any other name. `kind`
    is shown to people, `group` is the entry-point group.

    >>> missing_variant("source", "thumbwheel.sources", "jsonl") is None
    True
    """
    for extra, names in _variants_of_extras().items():
        if name in names.get(group, ()):
            return NotFound(
                f"{kind} {name!r}",
                f"it comes with the extra {extra!r}, which is not installed",
                f"Run: pip install 'thumbwheel[{extra}]'",
            )
    return None


@cache
def _variants_of_extras() -> dict[str, dict[str, list[str]]]:
    import tomllib

    return tomllib.loads(VARIANTS_OF_EXTRAS.read_text(encoding="utf-8"))


class VariantTable(Generic[T]):
    """The variants of one kind. `kind` is shown to people, `group` is the entry-point group."""

    def __init__(self, kind: str, group: str, built_in: Mapping[str, str]) -> None:
        self.kind, self.group, self._built_in = kind, group, dict(built_in)

    @cached_property
    def locations(self) -> dict[str, str]:
        """name -> "module:attribute", built-in first, then plugins by name; a plugin cannot replace
        a built-in name."""
        from importlib.metadata import entry_points

        points = {point.name: point.value for point in entry_points(group=self.group)}
        plugins = {name: points[name] for name in sorted(points) if name not in self._built_in}
        return {**self._built_in, **plugins}

    def names(self) -> list[str]:
        """Return all known names, built-in first."""
        return list(self.locations)

    def error_of(self, name: str) -> NotFound | None:
        """Return the error for a name that is not known, else None."""
        if name in self.locations:
            return None
        return missing_variant(self.kind, self.group, name) or NotFound(
            f"{self.kind} {name!r}",
            f"there is no {self.kind} of that name",
            f"Known: {', '.join(self.locations)}.{nearest(name, self.locations)}",
        )

    def get(self, name: str) -> T:
        """Return the variant called `name`. Raises NotFound with the known names and the nearest
        one, or with the extra that brings it."""
        if error := self.error_of(name):
            raise error
        module, _, attribute = self.locations[name].partition(":")
        variant = getattr(import_module(module), attribute)
        return cast("T", variant)
