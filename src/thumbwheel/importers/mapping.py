"""Tables with any columns: which column is what, as a person says, or guessed from its name; the
guess is shown and never silent.

Lives here: what a column can be, the guesses, and the records of a row. Two columns of which either
could be the same thing are not guessed between: the one that is meant has to be named. What the
values of a column of marks mean is decided by all of them (`marks.py`), or said by `--scale
rating=1:10`. To add something a column can be: a line
in MEANINGS, and in `row_records`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.core.present import shortened
from thumbwheel.importers.corrections import is_correction_name, is_sentence
from thumbwheel.importers.fields import moment, name_of, unpacked
from thumbwheel.importers.marks import (
    AGAINST,
    DENIED,
    FAULTS,
    OPPOSITES,
    RATINGS,
    RATINGS_ELSEWHERE,
    SCORES,
    SEVERAL,
    THUMBS,
    WORDS,
    MarkColumn,
    Reading,
    Scales,
    is_opinion_word,
    is_unpressed,
    kind_of_name,
    may_be_of_answer,
    plain,
    read_mark,
    reading_of,
)
from thumbwheel.importers.messages import (
    answer_fields,
    chat,
    converted,
    is_chat,
    with_media,
    with_thoughts,
)
from thumbwheel.importers.pairs import (
    NOT_ASKED,
    Verdict,
    checked_scores,
    context_text,
    history_of,
    messages_of,
    pair_of_row,
    pair_records,
    split_pair,
    with_context,
    with_remark,
    with_system,
)
from thumbwheel.importers.proposals import column_option, proposed_options
from thumbwheel.importers.types import (
    SCALES,
    AnyRecord,
    CaseRecord,
    FeedbackRecord,
    Rater,
    TraceRecord,
    Unreadable,
)
from thumbwheel.importers.wrapped import (
    is_reply,
    is_request,
    known_answer,
    known_prompt,
    prompt_in,
)

MEANINGS: Mapping[str, tuple[str, ...]] = {
    "prompt": (
        "prompt",
        "question",
        "query",
        "input",
        "instruction",
        "user-message",
        "user-input",
        "user-query",
        "user-prompt",
        "customer-message",
        "customer-question",
        "human",
        "request",
        "messages",
        "input-text",
        "text-input",
        "model-input",
        "chat-input",
    ),
    "history": ("history", "chat-history", "conversation-history", "previous-messages"),
    "context": ("context", "input"),
    "response": (
        "response",
        "answer",
        "output",
        "completion",
        "reply",
        "generation",
        "model-output",
        "model-response",
        "model-answer",
        "assistant-message",
        "assistant-response",
        "bot-answer",
        "bot-response",
        "bot-reply",
        "bot-message",
        "ai-response",
        "llm-response",
        "llm-output",
        "generated-text",
        "output-text",
        "assistant",
    ),
    "chosen": (
        "chosen",
        "chosen-response",
        "chosen-answer",
        "preferred",
        "preferred-response",
        "response-chosen",
        "better",
        "better-response",
        "better-answer",
        "accepted",
        "accepted-response",
        "winning-response",
        "chosen-conversations",
        "chosen-messages",
    ),
    "rejected": (
        "rejected",
        "rejected-response",
        "rejected-answer",
        "non-preferred",
        "non-preferred-response",
        "dispreferred",
        "dispreferred-response",
        "reject",
        "response-rejected",
        "worse",
        "worse-response",
        "worse-answer",
        "losing-response",
        "dispreferred-output",
        "dispreferred-outputs",
        "rejected-conversations",
        "rejected-messages",
    ),
    "thumb": THUMBS,
    "against": AGAINST,
    "rating": RATINGS,
    "score": SCORES,
    "correction": (
        "correction",
        "corrected",
        "corrected-response",
        "edited-response",
        "ideal-response",
        "expected-response",
        "fix",
        "human-correction",
        "corrected-answer",
        "edited-answer",
        "improved-answer",
        "improved-response",
        "suggested-answer",
        "suggested-response",
    ),
    "comment": (
        "comment",
        "comments",
        "note",
        "notes",
        "feedback-text",
        "feedback-comment",
        "user-comment",
        "rating-comment",
        "remark",
        "remarks",
        "reason",
    ),
    "reference": (
        "reference",
        "reference-answer",
        "reference-output",
        "ground-truth",
        "expected",
        "expected-answer",
        "expected-output",
        "ideal",
        "ideal-answer",
        "ideal-output",
        "gold",
        "gold-answer",
        "gold-response",
        "golden-answer",
        "correct-answer",
        "correct-response",
        "right-answer",
        "reference-response",
        "target",
        "target-output",
        "target-response",
    ),
    "system": (
        "system",
        "system-prompt",
        "system-message",
        "system-instruction",
        "instructions",
    ),
    "rater": ("rater", "rater-id", "annotator", "annotator-id", "worker", "reviewer", "rated-by"),
    "subject": ("subject", "user", "user-id", "userid", "customer-id", "username"),
    "session": ("session", "session-id", "sessionid", "conversation-id", "chat-id", "thread-id"),
    "id": ("id", "trace-id", "run-id", "message-id"),
    "model": ("model", "model-id", "model-name"),
    "occurred_at": (
        "occurred-at",
        "timestamp",
        "created-at",
        "created",
        "date",
        "time",
        "datetime",
        "sent-at",
    ),
}
"""What a column can be -> the names by which it is known, as `plain` spells them."""
ELSEWHERE: Mapping[str, str] = {
    "prompt": (
        "frage anfrage nutzerfrage kundenfrage eingabe pregunta consulta pergunta domanda "
        "richiesta vraag pytanie otázka dotaz fråga spørgsmål spørsmål kysymys soru kérdés "
        "întrebare вопрос запрос питання 问题 問題 提问 提問 質問 질문 سؤال שאלה प्रश्न"
    ),
    "response": (
        "antwort botantwort ausgabe réponse reponse respuesta resposta risposta antwoord "
        "odpowiedź odpověď svar vastaus cevap yanıt válasz răspuns ответ відповідь "
        "回答 回复 回覆 答案 답변 답 응답 جواب إجابة תשובה उत्तर"
    ),
    "comment": (
        "kommentar bemerkung anmerkung commentaire remarque comentario comentário commento "
        "opmerking komentarz комментарий 备注 備註 评论 評論 コメント 의견 코멘트"
    ),
    "occurred_at": "datum zeitpunkt zeit fecha дата 日期 时间 時間 日時 날짜 tarih",
    "correction": "korrektur corrección correção correzione correctie исправление 更正 修正 정정",
}
"""What a column can be -> what other languages call it. A German `Note` is none: its 1 is the best,
and in English it is a remark."""
LIKELY: Mapping[str, re.Pattern[str]] = {
    "prompt": re.compile(
        r"(initial-)?(user|customer|client|human|visitor|caller)-(message|question|query|input|prompt|text|"
        r"request|utterance)|message|q|inputs|chat|conversation|utterance"
    ),
    "response": re.compile(
        r"(ai|bot|llm|model|assistant|agent|chatbot|gpt|generated|final|actual|predicted|"
        r"original|fin)-(answer|"
        r"response|reply|output|message|completion|text)|bot|gpt|chatgpt|llm|ai|a|outputs|answer-text|choices|candidates"
    ),
}
"""What a column can be -> names that are tried where none of its usual names is there."""
ANSWER_NAME = re.compile(r"(response|answer|completion|output|generation|reply)[-_]?[a-z0-9]?\b")
"""Names of answers, also of several."""
PLAIN_NAME = re.compile(r"[\w.-]+")
NAMED_ANSWER = re.compile(r"[a-z0-9-]+-(response|answer|completion|generation|reply)")
"""Names of answers that say more of them: bad-answer, model-response."""
SIDES = re.compile(
    r"pos|neg|positive|negative|win|lose|winner|loser|good|bad|y-[wl]|(response-|answer-)?[jk]"
)
"""Names of the two answers of a pair, of which either may be anything else."""
PYTHON_CHAT = re.compile(r"\s*\[\s*\{'(role|content|from|value)':")
"""How a chat begins that was written as a text by Python."""
LEFT_OUT = "metadata"
"""How a person says that a column says nothing."""
QUESTIONS = frozenset({"input", "messages", "prompt", "query", "question", "user_input"})
"""Names of the only argument of a function that answers a question."""
FLATTENED = ("prompt", "response", "chosen", "rejected")
"""What a key of an object can be that was flattened to columns: `inputs.question`."""
SLASHED = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})(?!\d)")
"""A date of which either number may be the day."""
DAYS_OF_EXCEL = re.compile(r"[34]\d{4}([.,]\d+)?|5[0-4]\d{3}([.,]\d+)?")
"""A day of the years 1982 to 2050 as Excel counts it."""
ABOUT = ("metadata", "meta", "extra", "info")
"""Columns of objects about a row."""
INSIDE = ("thumb", "against", "rating", "score", "comment", "correction")
"""What a key inside an object of a column can be."""
MARKS = ("thumb", "against", "rating", "score")
"""Columns whose values are marks (`marks.py`)."""
ASKED = ({"prompt"}, {"chosen", "rejected"})
"""A table that has none of these together says nothing that could be learned from."""
REPLIES = frozenset({"answer", "completion", "reply", "response"})
"""Words of a name under which another answer may stand."""
FREE_TEXTS = ("feedback", "user-feedback", "human-feedback")
"""Names of columns in which people also write what they think."""
SCALE_IN_NAME = re.compile(r"\(\s*(-?\d+)\s*(?:-|–|to|bis|\.\.)\s*(\d+)\s*\)")
HELPSTEER = {"helpfulness", "correctness", "coherence", "complexity", "verbosity"}
"""Columns of NVIDIA's HelpSteer, whose numbers go from 0 to 4."""


@dataclass(frozen=True)
class ColumnMapping:
    """Meaning -> column, and how the marks are read."""

    columns: Mapping[str, str]
    guessed: frozenset[str]
    readings: Mapping[str, Reading]
    """Meaning -> how its marks are read."""
    unread: tuple[str, ...] = ()
    """Columns that may be marks, too, and are not read."""
    is_day_first: bool | None = None
    """Whether the day stands before the month in its dates with slashes; None: nobody knows."""

    def words(self) -> list[str]:
        """Return one line per column, for people."""
        lines = []
        for meaning, column in self.columns.items():
            how = "guessed from its name" if meaning in self.guessed else "as told"
            reading = self.readings.get(meaning)
            if reading is not None and reading.problem:
                how += f"; refused: {reading.problem}"
            elif reading is not None and reading.scale is not None:
                how += f", {reading.words()} (other: --scale {meaning}=WORST:BEST)"
            elif meaning in SCALES:
                how += ", read as up or down by its values"
            lines.append(f"{meaning} <- {column} ({how})")
        for column in self.unread:
            option = column_option("thumb", column)
            lines.append(f"not read: {column}, which may be feedback, too (to read it: {option})")
        return lines


@dataclass
class TableColumns:
    """The columns of a table as all of its rows have them."""

    named: Mapping[str, str]
    """Meaning -> column, as a person says."""
    has_header: bool = False
    """Whether a first line names the columns."""
    marks: dict[str, MarkColumn | None] = field(default_factory=dict)
    """Every column in order, with its values where they may be marks."""
    first: Mapping[str, Any] = field(default_factory=dict)
    """The first row."""
    opinion_words: set[str] = field(default_factory=set)
    """Columns in which an opinion stands as a word."""
    other_words: set[str] = field(default_factory=set)
    """Columns in which anything else stands."""
    objects: set[str] = field(default_factory=set)
    """Columns that hold objects."""
    nested: set[str] = field(default_factory=set)
    """Columns that hold objects or lists of which nobody knows what they say."""
    sentences: set[str] = field(default_factory=set)
    """Columns in which anybody wrote more than a word or two."""
    yes_or_no: set[str] = field(default_factory=set)
    """Columns in which a yes or no stands, in any word."""
    not_yes_or_no: set[str] = field(default_factory=set)
    """Columns in which anything else stands."""
    day_first: dict[str, set[bool]] = field(default_factory=dict)
    """Column -> whether the day stands first, by its dates of which only one number can be it."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Record the columns and values of a row."""
        self.first = self.first or row
        for name, value in with_inner_keys(row, self.named.values()).items():
            if name not in self.marks:
                self.marks[name] = MarkColumn() if self._may_be_mark(name) else None
            column = self.marks[name]
            is_inside = isinstance(value, list | dict) and isinstance(_mark_in(value), list | dict)
            if column is not None and is_inside and value:
                self.nested.add(name)
            if isinstance(_only_object(value), dict):
                self.objects.add(name)
            if column is not None and not isinstance(_mark_in(value), dict):
                column.add(_mark_in(value))
            self._add_text(name, value)
            if value not in (None, "") and name not in self.other_words:
                words = self.opinion_words if is_opinion_word(value) else self.other_words
                words.add(name)

    def _add_text(self, name: str, value: Any) -> None:
        """Record whether a value is a yes or no, a sentence, or a date."""
        text = _mark_in(value)
        if isinstance(text, str | bool) and text != "":
            mark = read_mark(text)
            is_yes_or_no = mark is not None and mark.thumb is not None
            (self.yes_or_no if is_yes_or_no else self.not_yes_or_no).add(name)
        if isinstance(text, str) and (date := SLASHED.match(text)):
            first, second = int(date[1]), int(date[2])
            if max(first, second) > 12:
                self.day_first.setdefault(name, set()).add(first > 12)
        if isinstance(text, str) and is_sentence(text):
            self.sentences.add(name)
        elif isinstance(value, list) and value and self.marks[name] is None:
            self.sentences.add(name)  # content blocks

    def _may_be_mark(self, name: str) -> bool:
        named_columns = [column for meaning, column in self.named.items() if meaning in MARKS]
        plain_name = _name_of_column(name)
        kind = kind_of_name(plain_name, in_training_data=True)
        is_asked = name.strip().endswith("?")  # the question of a form
        is_likely = kind is not None or is_asked or plain_name in MEANINGS["comment"]
        return name in named_columns or is_likely

    def is_flattened(self, name: str) -> bool:
        """Return whether a column is the key of an object that has no column of its own, and holds
        texts."""
        return name.rpartition(".")[0] not in self.marks and name in self.sentences

    def has_marks_alone(self, name: str) -> bool:
        """Return whether nobody wrote anything into a column but marks."""
        column = self.marks.get(name)
        return column is not None and column.count > 0 and not column.unknown

    def verdicts(self) -> Iterator[str]:
        """Yield the columns whose values are all marks, or all opinion words."""
        for name, column in self.marks.items():
            has_words = name in self.opinion_words - self.other_words
            is_mark = column is not None and column.count and not column.unknown
            if has_words or is_mark or name in self.nested:
                yield name


def map_columns(table: TableColumns, scales: Scales, where: str) -> ColumnMapping:
    """Return the meaning of the table's columns, as stated by a person or guessed from their names.
    Raises InputError for an unknown meaning or column, for two columns with the same meaning, and
    for a table without prompts."""
    named = table.named
    names = list(table.marks)
    left_out = _checked(named, names, where)
    named = {meaning: column for meaning, column in named.items() if meaning != LEFT_OUT}
    names = [name for name in names if name not in left_out]
    columns = dict(named) | _guessed(names, named, table, where)
    if "thumb" not in named:
        _demote_free_text(columns, named, table, scales, where)
    if not any(needed <= columns.keys() for needed in ASKED):
        if len(names) == 1 and table.has_header:
            raise InputError(
                where,
                f"its only column is called {names[0]!r}",
                "The first line has to name the columns: delete what stands above it",
            )
        raise InputError(
            where,
            f"none of its columns {', '.join(names[:20])} is known to contain the prompt",
            f"Name it, for example: {proposed_options(table.first)}",
        )
    _demand_pair(columns, where)
    others = [name for name in names if name not in columns.values()]
    if not {"response", "chosen", "rejected", "reference"} & columns.keys():
        _demand_answer(table, columns, others, where)
    elif "response" in columns and not {*MARKS, "correction"} & columns.keys():
        if "comment" in columns and "comment" not in named:
            others.append(columns["comment"])
        _demand_nothing_lost(table, others, where)
    in_order = {meaning: columns[meaning] for meaning in MEANINGS if meaning in columns}
    readings = {}
    for meaning in MARKS:
        if meaning in in_order:
            column = in_order[meaning]
            stated = scales.get(meaning) or scales.get(column) or _scale_in(column)
            if stated is None and set(names) >= HELPSTEER and column == "helpfulness":
                stated = (0.0, 4.0)
            stated_scales = {meaning: stated} if stated else {}
            # a person knows the name of the column, and may give its scale under it
            name = column if PLAIN_NAME.fullmatch(column) else meaning
            readings[meaning] = reading_of(
                name, meaning, table.marks[column], stated_scales, _name_of_column(column)
            )
    days_first = table.day_first.get(columns.get("occurred_at", ""), set())
    return ColumnMapping(
        in_order,
        frozenset(columns) - set(named),
        readings,
        tuple(_unread(table, columns, others)) if "response" in columns else (),
        next(iter(days_first)) if len(days_first) == 1 else None,
    )


def _unread(table: TableColumns, columns: Mapping[str, str], others: list[str]) -> list[str]:
    """Return the columns beside an answer that may say how good it is, and are not read."""
    parents = {name.partition(".")[0] for name in columns.values()}
    may_judge = {*table.verdicts(), *(table.yes_or_no - table.not_yes_or_no)}
    for name, column in table.marks.items():
        if column is not None and column.unknown and name not in table.sentences:
            may_judge.add(name)  # words that nobody knows, under the name of a mark
    unread = [name for name in others if name in may_judge and may_be_of_answer(name)]
    return [name for name in unread if name not in parents and "." not in name]


def _checked(named: Mapping[str, str], names: list[str], where: str) -> list[str]:
    """Return the columns that a person excluded. Raises InputError for unknown meanings and
    columns."""
    left_out: list[str] = []
    for meaning, stated in named.items():
        columns = stated.split(SEVERAL)
        if meaning == LEFT_OUT:
            left_out += columns
        elif meaning not in MEANINGS:
            raise InputError(
                f"--column {meaning}={columns[0]}",
                "there is no such meaning",
                f"Known: {', '.join(MEANINGS)}, {LEFT_OUT}.{nearest(meaning, MEANINGS)}",
            )
        elif len(columns) > 1:
            raise InputError(
                f"--column {meaning}={columns[1]}",
                f"{columns[0]} is the {meaning} already",
                f"Give --column {meaning}=... once",
            )
        for column in columns:
            if column not in names:
                raise InputError(
                    f"--column {meaning}={column}",
                    f"{where} has no such column",
                    f"It has: {', '.join(names)}.{nearest(column, names)}",
                )
    return left_out


def _demand_pair(columns: Mapping[str, str], where: str) -> None:
    """Raise InputError for one answer of a pair without the other."""
    sides = {"chosen", "rejected"} & columns.keys()
    if len(sides) == 1:
        (side,) = sides
        other = "rejected" if side == "chosen" else "chosen"
        raise InputError(
            where,
            f"its column {columns[side]} is one answer of a pair, and no other is known",
            f"Name it: --column {other}=COLUMN; or say that it is none: "
            f"{column_option(LEFT_OUT, columns[side])}",
        )


def _demand_answer(
    table: TableColumns, columns: Mapping[str, str], others: list[str], where: str
) -> None:
    """Raise InputError for prompts without answers if there is a mark, or a column that may be an
    answer, so that nothing is lost silently."""
    marks = [columns[meaning] for meaning in MARKS if meaning in columns]
    marks += [name for name in table.verdicts() if name in others]
    texts = [name for name in others if _may_be_answer(name, table.first.get(name))]
    if marks or texts:
        may_be = texts[0] if texts else "COLUMN"
        raise InputError(
            where,
            f"none of its columns {', '.join([*dict.fromkeys([*others, *marks])][:20])} is known "
            "to contain the answer",
            f"Name it, for example: {column_option('response', may_be)}; for two answers: "
            "--column chosen=... --column rejected=...; or say what is none: "
            f"{column_option(LEFT_OUT, may_be)}",
        )


def _demand_nothing_lost(table: TableColumns, others: list[str], where: str) -> None:
    """Raise InputError for answers that nobody judges beside a column that may judge them, or that
    may hold another answer."""
    verdict = next((name for name in table.verdicts() if name in others), None)
    if verdict is not None:
        raise InputError(
            where,
            f"its column {verdict} may be people's feedback on the answers",
            f"Say it: {column_option('thumb', verdict)} (or rating=, score=); or that it is "
            f"nothing of the kind: {column_option(LEFT_OUT, verdict)} (or comment=)",
        )
    answer = next((name for name in others if _is_another_answer(name, table)), None)
    if answer is not None:
        raise InputError(
            where,
            f"its column {answer} may be another answer to the same prompt",
            f"Say which: {column_option('correction', answer)} (somebody wrote it in place of the "
            f"other), reference={answer} (the right answer), rejected={answer}; or that it is "
            f"nothing of the kind: {column_option(LEFT_OUT, answer)}",
        )


def _may_be_answer(name: str, value: Any) -> bool:
    if NOT_ASKED.fullmatch(name.casefold()) or name.casefold() in ABOUT:
        return False
    if ANSWER_NAME.match(plain(name)) and value is not None:
        return True
    is_named = SIDES.fullmatch(plain(name)) or NAMED_ANSWER.fullmatch(plain(name))
    if is_named and isinstance(value, str):
        return True
    return isinstance(value, list | dict) or (isinstance(value, str) and " " in value.strip())


def _mark_in(value: Any) -> Any:
    """Return a mark, unwrapped if it is in the form of Label Studio's tables: [{"rating": 2}],
    {"choices": ["Good"]}."""
    if isinstance(value, str) and not value.startswith(("[{", '{"')):
        return value
    opened = unpacked(value)
    for _ in range(5):
        if isinstance(opened, list | dict) and len(opened) == 1:
            (opened,) = opened.values() if isinstance(opened, dict) else opened
    return value if isinstance(opened, list | dict) else opened


def with_inner_keys(row: Mapping[str, Any], named: Iterable[str] = ()) -> dict[str, Any]:
    """Return the row, with the keys of objects that may contain a mark as additional columns
    (`feedback.rating`), and those that a person named by their path (`sample.output_text`)."""
    inner: dict[str, Any] = {}
    for name, value in row.items():
        value = _only_object(value)
        if not isinstance(value, dict):
            continue
        kind = kind_of_name(_name_of_column(name), in_training_data=True)
        if kind is not None or name.casefold() in ABOUT:
            inner |= {f"{name}.{key}": part for key, part in value.items()}
    for path in named:
        if "." in path and path not in row and (value := _at(row, path)) is not None:
            inner[path] = value
    return {**row, **inner}


def _only_object(value: Any) -> Any:
    """Return the only object of a list; any other value unchanged."""
    is_one = isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)
    return value[0] if is_one else value


def _at(value: Any, path: str) -> Any:
    """Return the value at a path of keys and positions, such as `choices.0.text`; None if it is not
    there."""
    for key in path.split("."):
        value = unpacked(value)
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _scale_in(column: str) -> tuple[float, float] | None:
    """Return the (low, high) scale in a header such as "rating (1-5)", or None."""
    match = SCALE_IN_NAME.search(column)
    if match is None or float(match[1]) >= float(match[2]):
        return None
    return float(match[1]), float(match[2])


def _name_of_column(column: str) -> str:
    """Return a header in the form of `plain`, without the text in brackets after it."""
    whole = plain((column.partition("(")[0] or column).strip(" ?!:*")).removesuffix("/value")
    outer, _, inner = whole.rpartition(".")
    return outer.rpartition(".")[2] if inner == "value" and outer else inner


def _guessed(
    names: list[str], named: Mapping[str, str], table: TableColumns, where: str
) -> dict[str, str]:
    """Return meaning -> column, guessed from the names of the columns without a stated meaning.
    Raises InputError if two columns could have the same meaning."""
    columns: dict[str, str] = {}
    free = [name for name in names if name not in named.values()]
    by_name = {_name_of_column(name): name for name in free}
    if "prompt" not in named and {"instruction", "input"} <= by_name.keys():
        # an instruction and what it is about, as Alpaca has them
        columns |= {"prompt": by_name["instruction"], "context": by_name["input"]}
    if "score" not in named and set(names) >= HELPSTEER:
        columns["score"] = "helpfulness"
    for meaning in MEANINGS:
        fits = _fitting(meaning, free, table)
        if meaning == "comment" and not {*MARKS} & {*columns, *named}:
            fits = [name for name in fits if not table.has_marks_alone(name)]
        if meaning in named or meaning in columns or not fits:
            continue
        exact = [name for name in fits if name.casefold() == meaning]
        if len(fits) > 1 and len(exact) != 1:
            raise InputError(
                where,
                f"its columns {' and '.join(fits)} could both mean {meaning}",
                f"Say which: {column_option(meaning, fits[0])}",
            )
        columns[meaning] = (exact or fits)[0]
    _settle_guesses(columns, named, by_name, table)
    if "against" in columns and not {"thumb"} & {*columns, *named}:
        for good, bad in OPPOSITES.items():
            if bad == plain(columns["against"]) and good in by_name:
                columns["thumb"] = by_name[good]
    return columns


def _settle_guesses(
    columns: dict[str, str],
    named: Mapping[str, str],
    by_name: Mapping[str, str],
    table: TableColumns,
) -> None:
    """Change the guesses in `columns` where one of them depends on another. `by_name`: plain name
    -> column."""
    context = columns.get("context", "")
    if "prompt" not in {*columns, *named} and is_chat(unpacked(table.first.get(context))):
        columns["prompt"] = columns.pop("context")  # as in HelpSteer 3
    if "solution" in by_name and not {"response", "chosen", "reference"} & {*columns, *named}:
        columns["reference"] = by_name["solution"]
    if "prompt" not in {*columns, *named} and {"user", "assistant"} <= by_name.keys():
        columns["prompt"] = by_name["user"]
        columns.pop("subject", None)
    if "response" in {*columns, *named} and len({"chosen", "rejected"} & columns.keys()) == 1:
        # an answer beside a better or a worse one, or a column that says whether it was accepted
        better, worse = columns.pop("chosen", None), columns.pop("rejected", None)
        if better in table.sentences and not {"correction"} & {*columns, *named}:
            columns["correction"] = str(better)
        elif worse in table.sentences and "response" in columns and not set(MARKS) & {*columns}:
            columns |= {"chosen": columns.pop("response"), "rejected": str(worse)}


def _demote_free_text(
    columns: dict[str, str],
    named: Mapping[str, str],
    table: TableColumns,
    scales: Scales,
    where: str,
) -> None:
    """Make a column of feedback a comment where people wrote what they think. Raises InputError
    where they chose words that nobody knows."""
    thumbs = columns.get("thumb", "")
    values = table.marks.get(thumbs)
    is_stated = bool({thumbs, "thumb"} & scales.keys())
    if plain(thumbs) not in FREE_TEXTS or is_stated or not values:
        return
    if not values.count == values.unknown > 0:
        return
    if thumbs in table.nested:
        raise InputError(
            where,
            f"its column {thumbs} holds several objects, of which nobody knows what they say",
            f"Write what was said into a column of its own; or leave it out: "
            f"{column_option(LEFT_OUT, thumbs)}",
        )
    if thumbs not in table.sentences:
        raise InputError(
            where,
            f"its column {thumbs} contains unknown words, such as "
            f"{shortened(repr(table.first.get(thumbs)))}",
            f"Say what they mean, from the worst to the best: --scale {thumbs}=WORST:BEST; or that "
            f"people wrote what they think: {column_option('comment', thumbs)}",
        )
    del columns["thumb"]
    if "comment" not in named:
        columns["comment"] = thumbs


def _fitting(meaning: str, free: list[str], table: TableColumns) -> list[str]:
    """Return the columns whose names suggest this meaning."""
    elsewhere = set(ELSEWHERE.get(meaning, "").split())
    if meaning == "rating":
        elsewhere = {*RATINGS_ELSEWHERE.split()}
    fits = [name for name in free if _name_of_column(name) in MEANINGS[meaning]]
    fits = fits or [name for name in free if _name_of_column(name) in elsewhere]
    inner = [name for name in fits if "." in name and _is_of_answer(name)]
    fits = [name for name in fits if "." not in name]
    if meaning in INSIDE:
        fits = [name for name in fits if name not in table.objects] or inner
    elif meaning in FLATTENED:
        fits = fits or [name for name in inner if table.is_flattened(name)]
    if not fits and meaning == "correction":
        return [name for name in free if _is_correction(name, table)]
    if not fits and meaning in LIKELY:
        return [name for name in free if LIKELY[meaning].fullmatch(_name_of_column(name))]
    if meaning == "context":  # `input` is one only beside an instruction
        return [name for name in fits if _name_of_column(name) == "context"]
    if meaning == "history":
        return [name for name in fits if not isinstance(table.first.get(name), str)]
    return fits


def _is_of_answer(path: str) -> bool:
    """Return whether nothing on the path to a key says that it is about something else than how
    good an answer is: `eval.hallucination.score`, `input.rating`."""
    words = {word for key in path.split(".")[:-1] for word in plain(key).split("-")}
    return not words & (FAULTS | DENIED | WORDS["against"])


def _is_another_answer(name: str, table: TableColumns) -> bool:
    """Return whether a column holds texts under the name of an answer."""
    words = plain(name).split("-")
    is_text = name in table.sentences and may_be_of_answer(name)
    return is_text and bool(REPLIES.intersection(words))


def _is_correction(name: str, table: TableColumns) -> bool:
    """Return whether a column holds better answers than the one beside it, by its name."""
    if "." in name or _name_of_column(name) in (*MEANINGS["chosen"], *MEANINGS["rejected"]):
        return False
    return is_correction_name(_name_of_column(name)) and name in table.sentences


def row_records(row: Mapping[str, Any], mapping: ColumnMapping) -> list[AnyRecord]:
    """Return the records of a row: those of a pair; or a trace with its feedback, a case for a
    reference, or both; or a trace of a prompt alone. Raises Unreadable."""
    values = {}
    whole_row = with_inner_keys(row, mapping.columns.values())
    for meaning, column in mapping.columns.items():
        if whole_row.get(column) not in (None, ""):
            values[meaning] = whole_row[column]
    used = set(mapping.columns.values())
    rest = {key: value for key, value in row.items() if key not in used and value is not None}
    common = {
        "session": name_of(values.get("session")),
        "subject": name_of(values.get("subject")),
        "occurred_at": _moment(values.get("occurred_at"), mapping),
    }
    rater_id = name_of(values.get("rater"))
    rater = Rater(id=rater_id) if rater_id else None

    if "chosen" in values or "rejected" in values:
        return _pair(values, mapping, rater, rest, common)

    # no answer: a case, or a prompt alone
    prompt = _prompt(values, rest)
    case = None
    if "reference" in values:
        case = CaseRecord.model_validate({"input": prompt, "reference": values["reference"]})
    if "response" not in values:
        if _signals(values, mapping):
            raise Unreadable("its answer is empty, and somebody judged it")
        if case is not None:
            return [case]
        if prompt[-1]["role"] == "assistant":
            raise Unreadable(
                "its prompt ends in an answer, and no column has the answer: write the chats as "
                'lines of {"messages": [...]}, then: thumbwheel import openai FILE'
            )
        return [TraceRecord.model_validate({"input": prompt, "metadata": rest or None} | common)]

    # an answer with its feedback
    fields = {
        "id": name_of(values.get("id")),
        "input": prompt,
        "metadata": rest or None,
    }
    call = {"served_model": name_of(values.get("model"))}
    fields |= answer_fields(with_thoughts(_answer(values["response"]), rest), call)
    trace = TraceRecord.model_validate(fields | common)
    shared = {
        "targets": [trace.as_target()],
        "rater": rater,
        "occurred_at": common["occurred_at"],
    }
    signals = _signals(values, mapping)
    feedback = [FeedbackRecord.model_validate(shared | signal) for signal in signals]
    return [trace, *feedback] if case is None else [case, trace, *feedback]


def _moment(value: Any, mapping: ColumnMapping) -> datetime | str | None:
    """Return the time of a row, as `moment` does. Raises Unreadable, with the way out, for a date
    of which nobody knows the day, and for Excel's number of a day."""
    text = value.strip() if isinstance(value, str) else str(value)
    option = column_option(LEFT_OUT, mapping.columns.get("occurred_at", ""))
    date = SLASHED.match(text)
    if date is None:
        if DAYS_OF_EXCEL.fullmatch(text):
            raise Unreadable(
                f"its time {text} is Excel's number of a day; format the column as a date, or "
                f"leave it out: {option}"
            )
        return moment(value)
    day, month = date[1], date[2]
    if int(month) > 12 or mapping.is_day_first is False:
        day, month = month, day
    elif int(day) <= 12 and mapping.is_day_first is None:
        raise Unreadable(
            f"its time {text!r} may have the day or the month first; write it as "
            f"{date[3]}-{date[1]:0>2}-{date[2]:0>2}, or leave the column out: {option}"
        )
    return f"{day}.{month}.{date[3]}{text[date.end() :]}"


def _pair(
    values: Mapping[str, Any],
    mapping: ColumnMapping,
    rater: Rater | None,
    rest: dict[str, Any],
    common: dict[str, Any],
) -> list[AnyRecord]:
    """Return the records of a row with two answers; `rest` are its other columns, `common` fields
    of both traces. Raises Unreadable."""
    verdicts: list[Verdict] = [(rater, [[0], [1]])]
    chosen, rejected = _side(values.get("chosen")), _side(values.get("rejected"))
    if "prompt" in values:
        remark = checked_scores(rest)
        prompt, *answers = split_pair(_prompt(values, rest), chosen, rejected)
        both = (answers[0], answers[1])
        return with_remark(pair_records(prompt, both, verdicts, rest, **common), remark)
    if "prompt" in mapping.columns:
        raise Unreadable("its prompt is empty")
    prompt, both, remark = pair_of_row(rest, chosen, rejected)
    return with_remark(pair_records(prompt, both, verdicts, rest, **common), remark)


def _chat_in(value: Any) -> Any:
    """Return the messages if `value` is a text of JSON messages, the object if it is one of a
    request or a reply of a model's API, else `value` itself."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[{", "{")):
        return value
    opened = unpacked(value)
    messages = opened if isinstance(opened, list) else [opened]
    if is_chat(messages) and (isinstance(opened, list) or "role" in opened):
        return messages
    return opened if is_request(opened) or is_reply(opened) else value


def _inputs_in(value: Any) -> Any:
    """Return the arguments of a function whose only one is the question, if `value` is their JSON,
    as tables of evaluations have them; else `value` itself."""
    opened = unpacked(value)
    is_question = isinstance(opened, dict) and len(opened) == 1 and opened.keys() <= QUESTIONS
    return opened if is_question else value


def _side(value: Any) -> Any:
    """Return an answer of a pair: its text, its messages, or the message in its content blocks."""
    value = unpacked(value) if isinstance(value, str) and value.startswith("[") else value
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        (value,) = value
    if isinstance(value, list) and not is_chat(value):
        message = known_answer(value)
        return value if message is None else [message]
    return _chat_in(value)


def _prompt(values: Mapping[str, Any], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    prompt = _inputs_in(_chat_in(values.get("prompt")))
    if prompt is None or (isinstance(prompt, str) and not prompt.strip()):
        raise Unreadable("its prompt is empty")
    if isinstance(prompt, dict):
        if not known_prompt(prompt):
            raise Unreadable(
                f"its prompt is an object of which nobody knows what was asked; name what is in "
                f"it, for example --column prompt=COLUMN.{next(iter(prompt), 'KEY')}"
            )
        messages = with_media(prompt_in(prompt), row)
        return with_system(messages, values.get("system"))
    if not isinstance(prompt, str | list):
        prompt = str(prompt)
    if isinstance(prompt, str) and (text := context_text(values.get("context"))):
        prompt = with_context(prompt, text)
    if isinstance(prompt, str) and PYTHON_CHAT.match(prompt):
        raise Unreadable("its prompt is a chat in Python's spelling; write the messages as JSON")
    messages = [*history_of(values.get("history")), *with_media(messages_of(prompt), row)]
    return with_system(messages, values.get("system"))


def _answer(value: Any) -> dict[str, Any]:
    """Return the answer as a message, from a text, a message, or the last one of a chat."""
    value = _chat_in(value)
    messages = [value] if isinstance(value, dict) else value
    if is_chat(messages):
        return chat(messages)[-1]
    message = known_answer(value) if isinstance(value, dict | list) else None
    if message is not None:
        return message
    text = _text({"response": value}, "response")
    return converted({"role": "assistant", "content": text})[0]


def _text(values: Mapping[str, Any], meaning: str) -> str:
    value = values.get(meaning)
    if value is None:
        raise Unreadable(f"its {meaning} is empty")
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        value = "\n".join(value)
    if isinstance(value, dict | list):
        raise Unreadable(f"its {meaning} is no text")
    return str(value)


def _signals(values: Mapping[str, Any], mapping: ColumnMapping) -> list[dict[str, Any]]:
    signals: list[dict[str, Any]] = []
    marks = {meaning: _mark_in(values[meaning]) for meaning in MARKS if meaning in values}
    names = {meaning: _name_of_column(mapping.columns[meaning]) for meaning in marks}
    by_name = {names[meaning]: value for meaning, value in marks.items()}
    for meaning, value in marks.items():
        if not is_unpressed(names[meaning], value, by_name):
            signal = mapping.readings[meaning].signal(value)
            if signal is not None and signal not in signals:
                signals.append(signal)
    if "correction" in values:
        signals.append({"kind": "correction", "value": _text(values, "correction")})
    if "comment" in values:
        comment = _text(values, "comment")
        if not signals:
            return [{"kind": "comment", "value": comment}]
        signals[0]["comment"] = comment
    return signals
