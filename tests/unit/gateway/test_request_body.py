"""The model is replaced in the bytes of a request, and nothing else of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thumbwheel.core.errors import InputError
from thumbwheel.gateway.request_body import with_fields, with_model

KEYS = st.one_of(st.sampled_from(["model", "messages", "a", '"model"', "mod\\el", ""]), st.text())
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(['"model": "x"', "}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
BODIES = st.dictionaries(KEYS, VALUES, max_size=5)


@given(BODIES, st.booleans(), st.sampled_from([None, 0, 3]), st.text())
@settings(max_examples=200, deadline=None)
def test_only_the_given_fields_change(
    body: dict[str, Any], escaped: bool, indent: int | None, model: str
) -> None:
    raw = json.dumps(body, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
    wanted = body | {"model": model, "n": [1]}
    assert json.loads(with_fields(raw, {"model": model, "n": [1]})) == wanted
    assert with_model(raw, body, model, {"n": [1]}) == with_fields(raw, {"model": model, "n": [1]})


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{ "model" :\t"a" , "x":1.0e5}', b'{ "model" :\t"b" , "x":1.0e5}'),
        (b'{"x": {"model": "a"}, "model": null }\n', b'{"x": {"model": "a"}, "model": "b" }\n'),
        (b'{"mod\\u0065l": "a", "x": "\\u00e9"}', b'{"mod\\u0065l": "b", "x": "\\u00e9"}'),
        (b'{"model": "a", "model": {"n": [1, "]"]}}', b'{"model": "b", "model": "b"}'),
        (b'{"x": "say \\"model\\": 1"}', b'{"x": "say \\"model\\": 1", "model": "b"}'),
        (b"\xef\xbb\xbf{}", b'\xef\xbb\xbf{"model": "b"}'),
    ],
)
def test_the_other_bytes_stay(raw: bytes, expected: bytes) -> None:
    assert with_fields(raw, {"model": "b"}) == expected
    assert with_model(raw, json.loads(raw.decode("utf-8-sig")), "b", {}) == expected


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{", b'{"a": 1', b'"model"', '{"a": 1}'.encode("utf-16")]
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InputError, match="not a JSON object in UTF-8"):
        with_fields(raw, {"model": "b"})
