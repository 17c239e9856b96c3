"""The prompt builder: from chat messages to token ids, in one way for training and for serving.

The chat template of the tokenizer with its generation prompt, exactly one BOS where the tokenizer
has one; the completion after the fixed prompt ids, closed by the turn-end token of the template.
Captured token ids win over text. Everything that decides which tokens a model sees and learns is
here; messages.py normalizes messages and holds the fallback templates, training masks losses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import DataError, ModelError
from thumbwheel.core.written_calls import read_answer
from thumbwheel.engine.adapted_template import adapt, stored_template
from thumbwheel.engine.control_tokens import ControlTokens, unescape
from thumbwheel.engine.messages import FALLBACKS, TOOL_ROLES, Message, normalize, turns
from thumbwheel.engine.render import render_chat, template_of
from thumbwheel.models.template_settings import AS_IT_IS, TemplateSettings

MARK = "Qx7answerx7Q"
"""An answer to render where the template is asked what follows one; it survives trimming."""
CUT = frozenset({"length", "content_filter"})
"""Finish reasons of answers that the model did not end itself."""
ARGUMENTS = {"Qx7": "a"}
"""Arguments of a tool call to render where the template is asked in which form it wants them."""


@dataclass(frozen=True, slots=True)
class TargetText:
    """An answer to learn from: its text, why it ended, and its token ids where they were captured,
    which are used if they decode to the text."""

    text: str
    finish_reason: str | None = None
    captured_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenRow:
    """`boundary_mismatch`: tokenising prompt and completion as one text would have cut the prompt
    differently."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    boundary_mismatch: bool = False
    dropped_turns: int = 0

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The rows of one example over one common prompt, or none and `refused` says why."""

    rows: tuple[TokenRow, ...]
    dropped_turns: int = 0
    refused: str = ""


class PromptBuilder:
    """Builds prompts and rows for one tokenizer.

    A tokenizer without a chat template is given the fallback `fallback_template`
    (messages.FALLBACKS), so that saving the tokenizer saves it; `template_name` says so. The
    template is adapted to `settings` (adapted_template.py) in the tokenizer, too. `options` are
    further options of the template (`enable_thinking=False`).
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        fallback_template: str = "plain-v1",
        options: Mapping[str, Any] | None = None,
        settings: TemplateSettings | None = None,
    ) -> None:
        if fallback_template not in FALLBACKS:
            raise ModelError(
                f"fallback template {fallback_template!r}",
                "there is none of that name",
                f"Known: {', '.join(FALLBACKS)}",
            )
        settings = settings or TemplateSettings()
        self.settings = settings.model_copy(
            update={"options": {**settings.options, **(options or {})}}
        )
        self.tokenizer = tokenizer
        self.control_tokens = ControlTokens(tokenizer, self._is_around_messages)
        self.template_name = "tokenizer"
        if not tokenizer.chat_template:
            tokenizer.chat_template = FALLBACKS[fallback_template]
        for name, text in FALLBACKS.items():
            if tokenizer.chat_template == text:
                self.template_name = name

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Adapt the template in the tokenizer; return sentences about it for the user."""
        templates = self.tokenizer.chat_template
        if isinstance(templates, str):
            adapted = adapt(templates, self.settings, self._render_plain)
            self.tokenizer.chat_template = adapted.text
            return adapted.notes
        if not isinstance(templates, dict):
            return ()  # rendering says what it is instead

        # several templates, of which the tools of a request choose one
        texts = dict(templates)
        notes: list[str] = []
        for name, template in templates.items():
            if isinstance(template, str):
                adapted = adapt(template, self.settings, self._render_plain)
                texts[name] = adapted.text
                notes += adapted.notes
        self.tokenizer.chat_template = texts
        return tuple(dict.fromkeys(notes))

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the chat template shows the model the tools of a request."""
        question: list[Message] = [{"role": "user", "content": "Hello"}]
        parameters = {"type": "object", "properties": {}}
        function = {"name": "look_up", "description": "Look it up.", "parameters": parameters}
        tools = [{"type": "function", "function": function}]
        try:
            return self.render(question, tools) != self.render(question)
        except DataError:
            return False

    @cached_property
    def template_hash(self) -> str:
        """sha256 of the adapted template, which has its options in it, and of the special tokens
        that it may use."""
        _ = self.notes
        parts = [
            self.tokenizer.get_chat_template(),
            {},  # in hashes of earlier versions, options that nobody could set
            self.tokenizer.bos_token,
            self.tokenizer.eos_token,
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def turn_end_ids(self) -> tuple[int, ...]:
        """What the template puts after an answer, up to its first special token; the EOS token
        where it has none."""
        # what follows the answer in a rendered conversation
        conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
        text = self._apply(conversation, None, generation=False)
        after = self._encode(text.rpartition(MARK)[2]) if MARK in text else []
        for index, token in enumerate(after):
            if token in self._special_ids:
                return tuple(after[: index + 1])
        if self.tokenizer.eos_token_id is not None:
            return (int(self.tokenizer.eos_token_id),)
        raise ModelError(
            "the tokenizer",
            "neither its template nor the tokenizer has a token that ends an answer",
            "Set its eos_token",
        )

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens at which generation stops: the end of a turn and EOS."""
        ids = [self.turn_end_ids[-1]]
        eos = self.tokenizer.eos_token_id
        if eos is not None:
            ids.append(int(eos))
        return tuple(dict.fromkeys(ids))

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        special = {token_id for token_id, token in added.items() if token.special}
        control = self.control_tokens.ids.values()
        return frozenset(self.tokenizer.all_special_ids) | special | frozenset(control)

    @cached_property
    def _bos(self) -> int | None:
        """The BOS id, where the tokenizer puts one before a text by itself."""
        bos = self.tokenizer.bos_token_id
        return bos if bos is not None and self.tokenizer("a")["input_ids"][:1] == [bos] else None

    @cached_property
    def _wants_argument_text(self) -> bool:
        """Whether the template joins the arguments of a tool call to text, so that a mapping would
        raise or be shown as Python writes it."""
        as_mapping = self._rendered_call(ARGUMENTS)
        as_text = self._rendered_call(json.dumps(ARGUMENTS))
        if as_mapping is None or as_text is None:
            return as_mapping is None and as_text is not None
        return repr(ARGUMENTS) in as_mapping and json.dumps(ARGUMENTS) in as_text

    @cached_property
    def _hides_results(self) -> bool:
        """Whether the template leaves out what tools returned, without refusing it."""
        text = self._rendered_call(ARGUMENTS, MARK) or self._rendered_call("{}", MARK)
        return text is not None and MARK.casefold() not in text.casefold()

    def _is_around_messages(self, mark: str) -> bool:
        """Return whether the template writes `mark` around the texts of a plain conversation or
        around results of tools, and not only around calls, which are the model's."""
        plain, call, result = self._rendered_marks
        return mark in plain or (mark in result and mark not in call)

    @cached_property
    def _rendered_marks(self) -> tuple[str, str, str]:
        """What the template writes around (a plain conversation, a call, a call with its result);
        an empty text for what it refuses."""
        roles = ("system", "user", "assistant", "user")
        conversation = [{"role": role, "content": MARK} for role in roles]
        plain = ""
        for messages in (conversation, conversation[1:]):  # some have no system role
            try:
                plain = self._apply(messages, None, generation=False)
                break
            except DataError:
                continue
        call = self._rendered_call(ARGUMENTS, None) or self._rendered_call("{}", None)
        result = self._rendered_call(ARGUMENTS, MARK) or self._rendered_call("{}", MARK)
        return plain, call or "", result or ""

    def _require_results_shown(self, messages: Sequence[Message]) -> None:
        """Raise DataError for results of tools that the template leaves out: the model would learn
        to say what it has not seen."""
        has_results = any(message.get("role") in TOOL_ROLES for message in messages)
        if has_results and self._hides_results:
            raise DataError(
                "messages with results of tools",
                "the chat template leaves them out, so the model does not see them",
                "Choose a base whose chat template has tools, or leave the rows out",
            )

    def _rendered_call(self, arguments: Any, result: str | None = "b") -> str | None:
        """Render a question, a tool call and its result, if it has one; return None if the template
        refuses."""
        # some templates demand an id of nine letters
        function = {"name": "f", "arguments": arguments}
        call = {"id": "abcdefghi", "type": "function", "function": function}
        conversation: list[dict[str, Any]] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": result},
        ]
        if result is None:
            conversation.pop()
        try:
            return self._apply(conversation, None, generation=result is not None)
        except DataError:
            return None

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """Render the text up to where the model answers, for servers that take text. Raises
        DataError if the template refuses."""
        return unescape(self._escaped(messages, tools))

    def _escaped(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool = True,
    ) -> str:
        """Render as `render`, with the control tokens of the messages escaped; without `generation`
        up to the end of the last message. Raises DataError for messages that the model would not
        see, in training and in serving alike."""
        self._require_results_shown(messages)
        has_calls = any(
            isinstance(message, Mapping) and message.get("tool_calls") for message in messages
        )
        normalized = normalize(messages, argument_text=has_calls and self._wants_argument_text)
        text = self._apply(normalized, tools, generation=generation)
        escaped_messages = self.control_tokens.escape(normalized)
        escaped_tools = None if tools is None else self.control_tokens.escape(list(tools))
        if escaped_messages == normalized and escaped_tools == (tools and list(tools)):
            return text
        escaped = self._apply(escaped_messages, escaped_tools, generation=generation)
        if unescape(escaped) != text:
            raise DataError(
                "a text with control tokens",
                "the chat template rewrites it, so it cannot be kept apart from the template's own",
                "Remove them from the text",
            )
        return escaped

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Return the token ids up to where the model answers."""
        return self._with_bos(self._encode(self._escaped(messages, tools)))

    def row(
        self,
        messages: Sequence[Message],
        completion: str,
        *,
        finish_reason: str | None = None,
        captured_ids: Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> TokenRow:
        """Return prompt and completion ids; the completion ends with the turn-end token unless it
        was cut (`finish_reason`)."""
        captured = None if captured_ids is None else tuple(captured_ids)
        target = TargetText(completion, finish_reason, captured)
        return self._rows(messages, [target], tools)[0]

    def fit(
        self,
        messages: Sequence[Message],
        targets: Sequence[TargetText],
        max_length: int,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Fitted:
        """Return rows of `targets` after one common prompt, with the oldest turns dropped until the
        longest row fits `max_length`.

        Leading instructions and the last turn are kept and no completion is ever cut. Rows that
        still do not fit, that the template refuses or that have no tokens are refused with the
        reason, never raised.
        """
        try:
            instructions, groups = turns(normalize(messages))
            self._require_results_shown(messages)
        except DataError as error:
            return _refused_by(error)
        if len(instructions) + len(groups[-1] if groups else ()) > max_length:
            why = f"its last turn has more messages than the {max_length} tokens that are taken"
            return Fitted((), 0, f"the messages: {why}")

        def rows_without(dropped: int) -> list[TokenRow]:
            if not dropped:
                return self._rows(messages, targets, tools)
            return self._rows(
                [*instructions, *chain.from_iterable(groups[dropped:])], targets, tools
            )

        # a turn has a token at least, so older ones than that can never fit
        dropped = max(0, len(groups) - max(1, max_length))
        try:
            rows = rows_without(dropped)
            if _longest(rows) > max_length and len(groups) > dropped + 1:
                # the fewest that have to go, by halves: each try renders what is left
                too_few, dropped = dropped, len(groups) - 1
                rows = rows_without(dropped)
                while _longest(rows) <= max_length and too_few + 1 < dropped:
                    middle = (too_few + dropped) // 2
                    fewer = rows_without(middle)
                    if _longest(fewer) > max_length:
                        too_few = middle
                    else:
                        rows, dropped = fewer, middle
        except DataError as error:
            return _refused_by(error)
        if _longest(rows) > max_length:
            longest = max(rows, key=lambda row: row.length)
            refused = (
                f"a prompt of {len(longest.prompt_ids)} and an answer of "
                f"{len(longest.completion_ids)} tokens exceed {max_length} with every older turn "
                "dropped"
            )
            return Fitted((), 0, refused)
        return Fitted(tuple(replace(row, dropped_turns=dropped) for row in rows), dropped)

    def _rows(
        self,
        messages: Sequence[Message],
        targets: Sequence[TargetText],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> list[TokenRow]:
        text = self._escaped(messages, tools)
        prompt = tuple(self._with_bos(self._encode(text)))
        if not prompt:
            raise DataError("the prompt", "it has no tokens", "Give it a message")
        rows = []
        for target in targets:
            written = read_answer(target.text)
            completion = None
            if written is not None:
                completion = self._rendered_answer(messages, tools, text, written.message())
            rows.append(self._target_row(text, prompt, target, completion))
        return rows

    def _rendered_answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        prompt: str,
        answer: Message,
    ) -> str | None:
        """Render an answer that ends in calls as the template has it after this prompt, with its
        control tokens; return None if the template has no form for calls."""
        try:
            text = self._escaped([*messages, answer], tools, generation=False)
        except DataError:
            return None
        names = [call["function"]["name"] for call in answer["tool_calls"]]
        completion = text.removeprefix(prompt)
        if completion == text or not all(name in completion for name in names):
            return None
        return completion

    def _target_row(
        self, text: str, prompt: tuple[int, ...], target: TargetText, rendered: str | None
    ) -> TokenRow:
        """Return the row of `target`; `rendered` is the answer as the template has it, with the end
        of its turn."""
        if target.captured_ids is not None and self._decode_to(target.captured_ids, target.text):
            ids, mismatch = list(target.captured_ids), False
        else:
            completion = self.control_tokens.escape(target.text) if rendered is None else rendered
            ids, mismatch = self._completion(text, prompt, completion)
            if rendered is not None:
                ids = self._up_to_stop(ids)
        if target.finish_reason not in CUT and (not ids or ids[-1] not in self.stop_ids):
            ids += self.turn_end_ids
        if not ids:
            raise DataError("the completion", "it has no tokens", "Leave it out")
        return TokenRow(prompt, tuple(ids), mismatch)

    def _up_to_stop(self, ids: list[int]) -> list[int]:
        """Return the ids without those that a template puts after the end of a turn."""
        stops = (index for index, token in enumerate(ids) if token in self.stop_ids)
        first = next(stops, None)
        return ids if first is None else ids[: first + 1]

    def without_end(self, answer_ids: Sequence[int]) -> list[int]:
        """Return the ids of an answer without the token that ends it, which may have no special
        flag."""
        has_ended = bool(answer_ids) and answer_ids[-1] in self.stop_ids
        return list(answer_ids[:-1] if has_ended else answer_ids)

    def _decode_to(self, captured: Sequence[int], text: str) -> bool:
        """Return whether these ids decode to that text in this tokenizer; ids of another model's
        tokenizer do not."""
        if not all(0 <= token < len(self.tokenizer) for token in captured):
            return False
        decoded = self.tokenizer.decode(
            self.without_end(captured),
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return bool(decoded.strip() == text.strip())

    def _completion(
        self, text: str, prompt: tuple[int, ...], completion: str
    ) -> tuple[list[int], bool]:
        """Return the ids that continue the fixed prompt ids, and whether tokenising prompt and
        completion together would move the border; then they are the ids of the completion alone."""
        joint = self._with_bos(self._encode(text + completion))
        if tuple(joint[: len(prompt)]) == prompt:
            return joint[len(prompt) :], False
        return self._encode(completion), True

    def _encode(self, text: str) -> list[int]:
        return self.control_tokens.encode(text)

    def _with_bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        while bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return ids if self._bos is None or ids[:1] == [self._bos] else [self._bos, *ids]

    def _apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool,
    ) -> str:
        _ = self.notes
        template = template_of(self.tokenizer, tools)
        return self._render_template(template, messages, tools, generation=generation)

    def _render_plain(self, template: str, messages: Sequence[Mapping[str, Any]]) -> str:
        return self._render_template(template, messages, None, generation=True)

    def _render_template(
        self,
        template: Any,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool,
    ) -> str:
        return render_chat(
            template,
            messages,
            tools,
            generation=generation,
            variables=self.tokenizer.special_tokens_map,
        )


def _refused_by(error: DataError) -> Fitted:
    return Fitted((), 0, f"{error.what}: {error.why}")


def _longest(rows: Sequence[TokenRow]) -> int:
    return max(row.length for row in rows)


def trained_builder(
    tokenizer: Any, adapter: Path | None, settings: TemplateSettings | None = None
) -> PromptBuilder:
    """Return the builder with the chat template saved with `adapter`, unchanged, or, if there is
    none, with the template of `tokenizer` under `settings`."""
    template = None if adapter is None else stored_template(adapter)
    if template is None:
        return PromptBuilder(tokenizer, settings=settings)
    tokenizer.chat_template = template
    return PromptBuilder(tokenizer, settings=AS_IT_IS)
