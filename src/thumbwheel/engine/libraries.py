"""Imports torch, transformers and PEFT in processes of our own, without what no run needs.

PEFT imports bitsandbytes wherever it is installed, and has no setting against it. Over a base that
is not quantised this costs a quarter of a training child's start-up (bitsandbytes compiles
functions of its own, which loads torch's whole compiler) and 45 MB. So PEFT is told, once and while
it is imported, that bitsandbytes is not there. Whoever else imports bitsandbytes gets it, then and
later.

transformers imports scipy.optimize with every model, for losses of models that find objects in
pictures. The processes that load a model at once are spared it (a tenth of their imports).

A base that is quantised loads bitsandbytes before PEFT is asked for an adapter. Where it comes
after PEFT was imported, `tell_of_bitsandbytes` makes PEFT ask again.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

PEFT, BITSANDBYTES, SCIPY = "peft", "bitsandbytes", "scipy"
QUESTIONS = ("is_bnb_available", "is_bnb_4bit_available")
"""Functions of peft.import_utils that PEFT asks before it imports bitsandbytes; it keeps their
first answer."""
OF_A_MODEL = ("torch", "transformers.modeling_utils", "transformers.generation.utils", PEFT)
"""Modules that every model with an adapter needs; they import nearly all that is needed."""


def load_libraries() -> None:
    """Import everything that a model with an adapter needs, at once.

    It is for the entry points of processes that do nothing else. The garbage collector is off
    meanwhile, and never looks at the millions of objects that modules consist of: a fifth of the
    time.
    """
    leave_out_bitsandbytes()
    gc.disable()
    try:
        with hidden(SCIPY):
            for name in OF_A_MODEL:
                import_module(name)
        # It remembers that scipy was not there; other code may ask again.
        import_module("transformers.utils").is_scipy_available.cache_clear()
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def hidden(package: str) -> Iterator[bool]:
    """Make every import find that this package is not installed, unless it is loaded already.

    Yields whether it is hidden.
    """
    # None in sys.modules is Python's own way to say that a module is not there. The call
    # decides and hides in one step; a module that is loaded stays.
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    is_hidden = modules.setdefault(package, None) is None
    try:
        yield is_hidden
    finally:
        if is_hidden:
            del modules[package]


def leave_out_bitsandbytes() -> None:
    """Make this process import PEFT without bitsandbytes, whoever imports it first.

    It is for the entry points of our own processes: in the process of a user's app, PEFT belongs to
    the app too.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def tell_of_bitsandbytes() -> None:
    """Make PEFT check again whether bitsandbytes is installed, if it was asked before."""
    if PEFT in sys.modules:
        for question in _questions():
            question.cache_clear()


def _questions() -> list[Any]:
    """Return the cached functions of QUESTIONS that this version of PEFT has; a version without
    them is only slower."""
    with suppress(ImportError):
        module = import_module(f"{PEFT}.import_utils")
        functions = [getattr(module, name, None) for name in QUESTIONS]
        return [function for function in functions if hasattr(function, "cache_clear")]
    return []


class _Finder(MetaPathFinder):
    """Finds PEFT where Python does, and loads it by `_Loader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of PEFT, loaded by `_Loader`, and None for every other module."""
        if fullname != PEFT:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads PEFT by its own loader, while bitsandbytes is hidden."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Delegate to PEFT's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import PEFT, and let it check for bitsandbytes while that is hidden."""
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        with hidden(BITSANDBYTES) as is_hidden:
            self._loader.exec_module(module)
            if is_hidden:
                for question in _questions():
                    question()
