"""Answers that follow a grammar: JSON, JSON of a schema, or a call of a given tool.

The grammar says before each token which tokens may follow (library llguidance). A call that the
client asks for is written as a bare JSON object, which `answer_parser` reads for every model.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import InputError, MissingExtra
from thumbwheel.deploy.grammar_trial import TRIAL

if TYPE_CHECKING:
    import torch

LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""The spaces of Python's JSON. A grammar that takes any space lets a small model write nothing
else until its limit."""

LARGEST_SCHEMA = 1 << 18
"""Characters; compiling ten times as many took five seconds, in which others wait."""


@dataclass(frozen=True)
class AnswerForm:
    """What an answer may be: JSON of one of the schemas, or a call of one of the tools (name ->
    schema of its arguments)."""

    schemas: tuple[Mapping[str, Any], ...] = ()
    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def schema(self) -> dict[str, Any]:
        """Return one JSON schema for all of it. Alternatives by a grammar's own means would not do:
        its longest text wins, so that an answer which begins as a call does could only be one."""
        definitions: dict[str, Any] = {}
        choices: list[dict[str, Any]] = []
        for index, schema in enumerate(self.schemas):
            definitions[f"answer_{index}"] = _moved(schema, f"#/$defs/answer_{index}")
            choices.append({"$ref": f"#/$defs/answer_{index}"})
        for index, (name, schema) in enumerate(self.calls.items()):
            moved = _moved(_closed(schema), f"#/$defs/call_{index}")
            definitions[f"call_{index}"] = moved
            call = {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/call_{index}"}}
            choices.append(
                {
                    "type": "object",
                    "properties": call,
                    "required": ["name", "arguments"],
                    "additionalProperties": False,
                }
            )
        return {"anyOf": choices, "$defs": definitions}


def _closed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a tool's arguments without any that the tool does not name; a small
    model would go on inventing some."""
    says_more = any(
        key in schema
        for key in ("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")
    )
    if "properties" not in schema or says_more:
        return schema
    return {**schema, "additionalProperties": False}


def _moved(schema: Any, root: str) -> Any:
    """Return the schema with its references changed to their place below `root` of another
    schema."""
    if isinstance(schema, list):
        return [_moved(part, root) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(part, root) for key, part in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved


class Constraint:
    """What may follow in one answer."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def copy(self) -> Constraint:
        """Return the same constraint for another answer."""
        return Constraint(self._matcher.deep_copy(), self._vocabulary)

    def allow(self, logits: torch.Tensor) -> torch.Tensor:
        """Return `logits` [1, V] with minus infinity for the tokens that may not follow."""
        import numpy as np
        import torch

        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(packed, bitorder="little")[: self._vocabulary]
        mask = torch.zeros(logits.shape[-1], dtype=torch.bool)
        mask[: len(bits)] = torch.from_numpy(bits.astype(bool))
        return logits.masked_fill(~mask.to(logits.device), float("-inf"))

    def add(self, token: int) -> bool:
        """Note the token that was drawn; return whether the answer is complete with it. Raises
        InputError for a grammar that is too large to go on with."""
        self._matcher.consume_token(token)
        if self._matcher.is_error():
            raise _bad_form(self._matcher.get_error())
        return bool(self._matcher.is_stopped())


class GrammarCompiler:
    """Compiles forms for one tokenizer. `vocabulary`: how many logits the model has."""

    def __init__(self, tokenizer: Any, vocabulary: int, stop_ids: Sequence[int]) -> None:
        self._tokenizer, self._vocabulary, self._stop_ids = tokenizer, vocabulary, list(stop_ids)
        self._lock = threading.Lock()

    def compile(self, form: AnswerForm) -> Constraint:
        """Return the constraint. Raises InputError for a schema that cannot be followed."""
        with self._lock:
            tokens = self._tokens
        import llguidance

        try:
            schema = json.dumps(form.schema())
            if len(schema) > LARGEST_SCHEMA:
                why = f"it has {len(schema):,} characters, and at most {LARGEST_SCHEMA:,} are taken"
                raise _bad_form(why)
            grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=LAYOUT)
        except (TypeError, ValueError, RecursionError) as error:
            raise _bad_form(str(error)) from None
        if problem := TRIAL.problem(grammar):
            raise _bad_form(problem)
        matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
        if matcher.is_error():
            raise _bad_form(matcher.get_error())
        return Constraint(matcher, self._vocabulary)

    @cached_property
    def _tokens(self) -> Any:
        """The library's view of the tokenizer, which takes a second to make for a large one."""
        try:
            from llguidance import hf
        except ImportError:
            raise MissingExtra.of("structured output", "llguidance", "train") from None
        return hf.from_tokenizer(self._tokenizer, self._vocabulary, self._stop_ids)


def _bad_form(why: str) -> InputError:
    text = " ".join(why.split())[:300]
    return InputError("the schema of the answer", text, "Send a JSON schema that llguidance takes")
