"""What is taken for personal data or a key, and what only looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.sdk.detectors import CREDENTIAL, KINDS, PERSONAL, find, replaced

FOUND = [
    ("write to jane.doe+x@mail.example.org today", "email", "jane.doe+x@mail.example.org"),
    (
        "IBAN DE89 3704 0044 0532 0130 00 please",
        "iban",
        "DE89 3704 0044 0532 0130 00",
    ),
    ("pay gb82-west-1234-5698-7654-32.", "iban", "gb82-west-1234-5698-7654-32"),
    ("NO9386011117947 and more", "iban", "NO9386011117947"),
    ("card 4111-1111-1111-1111.", "card", "4111-1111-1111-1111"),
    ("4111 1111 1111 1111 12 27 123", "card", "4111 1111 1111 1111"),
    ("No 7 5500005555555559 is it", "card", "5500005555555559"),
    ("amex 378282246310005", "card", "378282246310005"),
    ("call +49 30 1234567 now", "phone", "+49 30 1234567"),
    ("from 8.8.8.8 it came", "ip address", "8.8.8.8"),
    ("from 2001:4860:4860::8888 it came", "ip address", "2001:4860:4860::8888"),
    ("token sk-proj-abcdefghijklmnopqrstuvwx", "api key", "sk-proj-abcdefghijklmnopqrstuvwx"),
    ("sk-ant-api03-AbC_def-0123456789", "api key", "sk-ant-api03-AbC_def-0123456789"),
    ("ghp_" + "a1B2" * 10, "api key", "ghp_" + "a1B2" * 10),
    ("AKIAIOSFODNN7EXAMPLE", "api key", "AKIAIOSFODNN7EXAMPLE"),
    ("xai-" + "a1" * 20, "api key", "xai-" + "a1" * 20),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- x",
        "api key",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ),
    ("-----BEGIN PRIVATE KEY-----\nMIIE", "api key", "-----BEGIN PRIVATE KEY-----\nMIIE"),
]


@pytest.mark.parametrize(("text", "kind", "match"), FOUND)
def test_it_is_found(text: str, kind: str, match: str) -> None:
    assert [(each, text[start:end]) for each, start, end in find(text)] == [(kind, match)]
    assert replaced(text, KINDS, lambda each: "X") == text.replace(match, "X")


@pytest.mark.parametrize(
    "text",
    [
        "DE89 3704 0044 0532 0130 02",
        "4111 1111 1111 1112",
        "1700000000000000003",
        "123e4567-e89b-12d3-a456-426614174000",
        "version 1.2.3.4.5",
        "order 123456789012",
        "192.168.0.1",
        "at 12:30:45 or ::1",
        "a@b",
        "3 + 4 = 7",
        "0000 0000 0000 0000",
        "a sk-learn-compatible-estimators class",
        "password=hunter22",
    ],
)
def test_what_only_looks_like_it_is_not(text: str) -> None:
    assert list(find(text)) == []


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("postgresql://anna:pa55w0rd@host/db", "postgresql://X@host/db"),
        ("Authorization: Bearer abcdefghij0123456789", "Authorization: Bearer X"),
        ("set api_key = 'abcdef123'", "set X'"),
        ('{\\"password\\": \\"abcdef123\\"}', '{\\"X\\"}'),
    ],
)
def test_surroundings_tell_of_a_credential(text: str, rest: str) -> None:
    assert replaced(text, (CREDENTIAL,), lambda kind: "X") == rest


@given(st.text(), st.sampled_from([match for _, _, match in FOUND]), st.text())
def test_it_is_gone_whatever_is_around_it(before: str, match: str, after: str) -> None:
    text = f"{before} {match} {after}"
    assert match not in replaced(text, (*PERSONAL, *KINDS), lambda kind: "X")
