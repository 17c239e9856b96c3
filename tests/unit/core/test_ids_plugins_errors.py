"""Identifiers, tables of variants and the error tree."""

from __future__ import annotations

import base64
import doctest
import hashlib
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.core import errors, ids, plugins
from thumbwheel.core.errors import InputError, NotFound, ThumbwheelError


@pytest.mark.parametrize("module", [ids, plugins])
def test_docstring_examples(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["../x", "", "a/b", "a..b", ".a", "A", "ä", "a" * 64, "a\n", "-a", "a\0"]
)
def test_a_slug_is_never_a_path(name: str) -> None:
    with pytest.raises(InputError, match="agent name"):
        ids.slug(name)


@pytest.mark.parametrize("name", ["../a", "a/b", "..", ".hidden", "a\\b", "a\0", "a\nb", "!!"])
def test_no_slug_is_made_of_a_path_or_of_nothing(name: str) -> None:
    with pytest.raises(InputError, match="agent name"):
        ids.slug_of(name)


@given(st.lists(st.text(), min_size=1, max_size=3), st.lists(st.text(), min_size=1, max_size=3))
def test_derived_ids_are_equal_only_for_equal_parts(a: list[str], b: list[str]) -> None:
    assert (ids.derived("x", *a) == ids.derived("x", *b)) == (a == b)


@given(st.lists(st.text(st.characters(codec=None))))
def test_a_derived_id_is_base32_of_a_hash_of_the_parts_as_json(parts: list[str]) -> None:
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    assert ids.derived("x", *parts) == "x_" + base64.b32hexencode(digest[:15]).decode().lower()


def test_new_ids_are_unique_and_fit_the_column() -> None:
    new_ids = {ids.new("run") for _ in range(10_000)}
    assert len(new_ids) == 10_000
    assert max(map(len, new_ids)) <= 40 and len(ids.derived("trc", "a")) <= 40


def test_an_unknown_variant_names_the_known_ones() -> None:
    table: plugins.VariantTable[object] = plugins.VariantTable(
        "source", "thumbwheel.none", {"jsonl": "json:loads"}
    )
    assert table.get("jsonl") is not None
    with pytest.raises(NotFound, match=r"'jsnl'.*Known: jsonl\..*Did you mean 'jsonl'"):
        table.get("jsnl")


def test_every_error_has_an_exit_code_and_survives_pickling() -> None:
    tree = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, ThumbwheelError)
    ]
    assert len(tree) == 16
    for kind in tree:
        error = kind("this 'x'", "it cannot be", "Do that")
        assert str(pickle.loads(pickle.dumps(error))) == "this 'x': it cannot be. Do that"
        assert 1 <= error.exit_code <= 12 and kind.__doc__
