"""The variants that the systems bring: entry-point group -> name -> "module:attribute".

Tables of variants read this module as they read the entry points of an installed package.
"""

from __future__ import annotations

from collections.abc import Mapping

VARIANTS: Mapping[str, Mapping[str, str]] = {}
