"""What is taken for a secret, and what is not: both sides, for one too many is text lost and one
too few is a key kept."""

from __future__ import annotations

import pytest

from thumbwheel.sdk.redact import GONE, redacted, secrets_in, telling


@pytest.mark.parametrize(
    "key",
    [
        "aws_secret_access_key",
        "AWS_SECRET_ACCESS_KEY",
        "secretAccessKey",
        "secret_access_key",
        "token",
        "Token",
        "auth.token",
        "github_token",
        "githubToken",
        "pwd",
        "db_pwd",
        "access_key",
        "signing_key",
        "encryption_key",
        "private_key",
        "api_key",
    ],
)
def test_a_value_under_a_telling_key_is_taken_out_everywhere(key: str) -> None:
    assert telling(key)
    row = {"config": {key: "Zx81-quiet"}, "text": "it said Zx81-quiet twice"}
    assert secrets_in(row) == {"Zx81-quiet"}
    assert redacted(row) == {"config": {key: GONE}, "text": f"it said {GONE} twice"}


def test_lists_and_the_keys_of_objects_are_searched() -> None:
    row = {
        "headers": [{"api_key": "Zx81-quiet"}, ["it is Zx81-quiet"]],
        "of Zx81-quiet": {"Zx81-quiet": 1},
    }
    assert redacted(row) == {
        "headers": [{"api_key": GONE}, [f"it is {GONE}"]],
        f"of {GONE}": {GONE: 1},
    }


@pytest.mark.parametrize(
    "key",
    [
        "tokens",
        "total_tokens_in",
        "token_ids",
        "token_count",
        "max_tokens",
        "tokenizer",
        "token_logprobs",
        "eos_token",
        "next_page_token",
        "access",
        "key",
        "keyword",
        "pwd_hint_shown",
    ],
)
def test_what_only_looks_like_one_stays(key: str) -> None:
    assert not telling(key)
    row = {key: "perfectly plain", "text": "perfectly plain"}
    assert redacted(row) == row


def test_the_tokens_of_an_answer_beside_their_probability_are_no_secrets() -> None:
    row = {
        "content": [
            {
                "token": "please",
                "logprob": -0.1,
                "top_logprobs": [{"token": "kindly", "logprob": -2.0}],
            }
        ],
        "text": "please",
    }
    assert redacted(row) == row
    assert redacted({"token": "please", "text": "please"}) == {"token": GONE, "text": GONE}
