"""What a user's next message says about the answer before it: thanks, a repeated or rephrased
question, a complaint, a correction in words, or nothing.

These are rules in a few languages: patterns of words, and how alike the two messages are. They are
careful rather than complete: a message that fits no rule says nothing. How much a reading is worth
is no business of the rules: people's thumbs decide that (`Calibration`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from thumbwheel.core.errors import InputError

LONGEST = 2_000
"""Characters of a message that are read: a verdict stands at the beginning, a pasted text after
it."""
SAME_FROM = 0.95
"""Two messages are the same question from this similarity on."""
ALIKE_FROM = 0.8
"""Two messages ask the same in other words from this similarity on."""
FEWEST_WORDS = 3
"""Words of a message below which likeness says nothing ("yes please" twice), and words beside a
verdict from which it is a hint."""


class ReplyReading(StrEnum):
    """What a message says about the answer before it."""

    THANKS = "thanks"
    REPEAT = "repeat"
    REPHRASE = "rephrase"
    COMPLAINT = "complaint"
    CORRECTION = "correction"


PRIORS: Mapping[ReplyReading, float] = {
    ReplyReading.THANKS: 0.8,
    ReplyReading.REPEAT: 0.25,
    ReplyReading.REPHRASE: 0.35,
    ReplyReading.COMPLAINT: 0.15,
    ReplyReading.CORRECTION: 0.15,
}
"""How likely the answer before is good, as long as nobody's thumbs say otherwise. Assumed, and
close to a half because of that."""

# One line a language: English, German, French, Spanish.
_THANKS = (
    r"\b(thank(s| you| u|ful)|thx|cheers|appreciate(d)?|much obliged|grateful|gratitude|good job)\b"
    r"|\b(that|it) (worked|works|helped|helps|did it)\b|^(perfect|excellent|awesome|brilliant)\b"
    r"|\bgreat (help|job|answer|work|stuff)\b|\bexactly what i (needed|wanted|was looking for)\b",
    r"\b(danke(schön)?|dankesch(ö|oe)n|vielen dank|besten dank|merci)\b"
    r"|\b(hat (super |gut )?geklappt|funktioniert jetzt|hat geholfen|perfekt|prima|klasse)\b",
    r"\b(merci( beaucoup)?|parfait|génial)\b|\bça (marche|fonctionne) maintenant\b",
    r"\b(gracias|perfecto|genial|excelente)\b|\bya funciona\b",
)
_NO_THANKS = (
    r"\b(no|not|without) (thanks|thank you)\b|\bthanks? (you )?(for nothing|in advance|anyway)\b"
    r"|\bthank (you )?in advance\b|\bsay thank(s| you)\b|\bthanks? to\b"
    r"|\bthank[- ]you (note|card)|\b(later|bye),? thanks|\bthanks,? (bye|later)"
    r"|\bwould (be |have )?(appreciated?|be perfect)\b|\bi'?d appreciate\b|\bperfect (for"
    r"|time|way)\b",
    r"\b(nein,? danke|danke (im voraus|für nichts|trotzdem)|dankesschreiben)\b",
    r"\bnon,? merci\b|\bmerci d'avance\b",
    r"\bno,? gracias\b|\bgracias de antemano\b",
)
_COMPLAINT = (
    r"\b(that|this|it|which)('s| is| was) (just |simply |still |completely |totally |all |also )?"
    r"(wrong|incorrect|false|not (right|correct|true|helpful|what i (asked|meant|wanted|said))"
    r"|useless|nonsense|rubbish|garbage)\b"
    r"|\b(isn'?t|wasn'?t|is not|not) (right|correct|true|helpful|what i (asked|meant|wanted|said"
    r"|was asking))\b|\byou('re| are) (wrong|mistaken|not listening|missing the point)\b"
    r"|\byou (misunderstood|didn'?t (answer|listen|read|understand)|ignored|forgot|missed"
    r"|keep (saying|repeating|getting))\b"
    r"|\b(still )?(does ?n'?o?t|did ?n'?o?t|doesn'?t|didn'?t) (work|help|answer|compile"
    r"|make sense)\b"
    r"|\bthat (makes no sense|didn'?t help|is no help)\b|\bnone of (that|this|these|those)\b"
    r"|\bneither of (those|these|them)\b|\b(wrong|bad|terrible|awful|useless) (answer|response)\b"
    r"|^(no,? )?(wrong|incorrect|nonsense|useless)\b"
    r"|\btoo (long|short|vague|complicated|verbose|wordy|formal|generic)\b",
    r"\b(das|es|dies) (ist|war|stimmt) (leider |immer noch |so |doch |einfach )*"
    r"(falsch|nicht (richtig|korrekt|das,? was ich)|unsinn|quatsch|nutzlos|nicht)\b"
    r"|\bstimmt (so |leider )?nicht\b|\b(funktioniert|klappt|geht|hilft) (leider "
    r"|immer noch |so |mir )*"
    r"nicht\b|\bdu hast (mich )?(falsch|nicht) (verstanden|geantwortet|zugehört)\b"
    r"|\bdanach habe ich nicht gefragt\b|^(falsch|unsinn|quatsch)\b"
    r"|\bzu (lang|kurz|kompliziert|ungenau|förmlich|allgemein)\b",
    r"\bc'est (faux|incorrect|inutile)\b|\bça ne (marche|fonctionne) (toujours )?pas\b"
    r"|\bce n'est pas (ça|correct|juste|ce que)\b|\btrop (long|court|compliqué|vague)\b",
    r"\b(eso|esto) (es(tá)?|no es) (mal|incorrecto|correcto|falso|lo que)\b|\bno (sirve|funciona)\b"
    r"|\bdemasiado (largo|corto|complicado|vago)\b",
)
_CORRECTION = (
    r"^(no|nope|not quite|not really|actually|wait|sorry)\b[,.:;!]* *(but )?"
    r"(it('s| is| was| should)|that('s| is| was) (?!(all|ok|okay|fine|it|why|what|right"
    r"|great|good)\b)|they('re| are)|he('s| is)|she('s| is)"
    r"|i (meant|mean|said|asked|wanted)|the (correct|right)|there (is|are)|you (should|need"
    r"|have to))"
    r"|(^|[.!;] )(sorry,? |but |no,? )?i (meant|said|asked (for|about)|was asking (for|about)) "
    r"|\bit should (be|have been|say|read)\b|\bshould (have been|read|say)\b.*\b(not|instead)\b"
    r"|\bthe (correct|right) (answer|one|name|spelling|date|value|way) (is|was|would be)\b"
    r"|\b(change|fix|correct) (that|this|it) to\b",
    r"^(nein|nee|nicht ganz|eigentlich|moment)\b[,.:;!]* *(aber )?"
    r"(es (ist|sind|war|heißt|muss|sollte)|das (ist|sind|war|heißt|muss)|ich (meinte|meine"
    r"|sagte|wollte)"
    r"|die richtige|der richtige|er (ist|war|heißt)|sie (ist|war|sind|heißt))"
    r"|\bich (meinte|sagte|hatte nach|wollte eigentlich)\b|\b(es|das) (muss|sollte"
    r"|müsste) .*\b(heißen|sein|lauten)\b"
    r"|\bnicht [\w' -]{1,30}, sondern\b|\brichtig (ist|wäre|lautet)\b",
    r"^(non|en fait)\b[,.:;!]* *(c'est|il|elle|je (voulais|parlais))|\bje voulais dire\b"
    r"|\bil faudrait\b",
    r"^(no|en realidad)\b[,.:;!]* *(es|era|está|son|quise|quería)\b|\bquise decir\b"
    r"|\bdebería (ser|decir)\b",
)
_REPHRASE = (
    r"\b(in other words|what i mean is|let me (rephrase|clarify|try again|put it)"
    r"|to (clarify|rephrase))\b"
    r"|\b(try|do it|answer) (it |that |this )?again\b|\banother (answer|try|attempt)\b"
    r"|\b(explain|say|write|phrase) (that|this|it)( again)?( \w+)? (differently|more simply"
    r"|more clearly"
    r"|in simpler|another way|better)\b|\bi (still )?(don'?t|do not) (understand|get it)\b",
    r"\b(anders gesagt|mit anderen worten|ich meine damit|noch ?mal anders"
    r"|versuch'?s? (es )?noch ?(ein)?mal)\b"
    r"|\bich verstehe (das |es )?(immer noch )?nicht\b|\berklär(e)? (mir )?(das"
    r"|es) (bitte )?(anders|einfacher)\b",
    r"\b(autrement dit|je (ne )?comprends (toujours )?pas|essaie encore)\b",
    r"\b(en otras palabras|(todavía )?no (lo )?entiendo|inténtalo de nuevo)\b",
)
_AGAIN = (
    r"\b(repeat|say|want|have|need) (that|this|it|what you (just )?said) (again|once more"
    r"|one more time|repeated)\b"
    r"|\brepeat (that|this|it|yourself|what you)\b(?! \w+ (about|of))|\bplease repeat$"
    r"|\bdid ?n'?o?t (hear|catch) (you|that|what)\b"
    r"|^(just )?(one more time|once more|come again|same question( again)?)\b",
    r"\b(wiederhol(e|en)?|noch ?mal (bitte)?$|ich habe doch gefragt|wie gefragt)\b",
    r"\brépète(z)?\b",
    r"\brepite|repita\b",
)


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


THANKS, NO_THANKS = _any_of(_THANKS), _any_of(_NO_THANKS)
COMPLAINT, CORRECTION = _any_of(_COMPLAINT), _any_of(_CORRECTION)
REPHRASE, AGAIN = _any_of(_REPHRASE), _any_of(_AGAIN)
ANSWERS = re.compile(r"^(yes|yeah|yep|sure|ok|okay|right|ja|genau|oui|si|sí)\b")
MORE = re.compile(
    r"\b(other|more|else|another|again|also|about|andere|mehr|noch|auch|autre|otro|más)\b"
)
"""A question that asks for more of the same is not the same question in other words."""
BUT = re.compile(r"\b(but|however|though|aber|jedoch|allerdings|mais|pero)\b")
WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class NextTurn:
    """What a message says about the answer before it: a reading, or None where it says nothing.
    `hint`: whether it also says what would be right."""

    reading: ReplyReading | None
    hint: bool = False


def read_next_turn(question: str, message: str) -> NextTurn:
    """Read what `message` says about the answer to `question`, the user's message before that
    answer.

    >>> read_next_turn("Where is it?", "Thanks, that helped!").reading
    <ReplyReading.THANKS: 'thanks'>
    >>> read_next_turn("Wo liegt es?", "Nein, es ist in Berlin, nicht in Bonn.")
    NextTurn(reading=<ReplyReading.CORRECTION: 'correction'>, hint=True)
    >>> read_next_turn("Where is it?", "And how do I get there?").reading is None
    True
    """
    asked, text = plain(question), plain(message)
    if not text:
        return NextTurn(None)
    likeness = _likeness(asked, text)
    if likeness >= SAME_FROM:
        return NextTurn(ReplyReading.REPEAT)
    if verdict := COMPLAINT.search(text):
        # "that is wrong, it should be 5" says what is right: the words beside the verdict count
        return NextTurn(ReplyReading.COMPLAINT, hint=_says_more(text, verdict))
    if verdict := CORRECTION.search(text):
        return NextTurn(ReplyReading.CORRECTION, hint=_says_more(text, verdict))
    if AGAIN.search(text):
        return NextTurn(ReplyReading.REPEAT)
    asks_anew = likeness >= ALIKE_FROM and not ANSWERS.match(text) and not MORE.search(text)
    if REPHRASE.search(text) or asks_anew:
        return NextTurn(ReplyReading.REPHRASE)
    thanks = THANKS.search(text)
    if thanks and not NO_THANKS.search(text) and not BUT.search(text[thanks.end() :][:40]):
        return NextTurn(ReplyReading.THANKS)
    return NextTurn(None)


def plain(message: str) -> str:
    """Return the beginning of a message with its case folded, single spaces and plain
    apostrophes."""
    return " ".join(message[:LONGEST].casefold().replace("\u2019", "'").split())


def _likeness(asked: str, text: str) -> float:
    """Return the similarity of two messages, from 0 to 1; 0 if one is too short to tell."""
    from rapidfuzz import fuzz

    words = min(len(WORD.findall(asked)), len(WORD.findall(text)))
    if words < FEWEST_WORDS:
        return 0.0
    return max(fuzz.ratio(asked, text), fuzz.token_sort_ratio(asked, text)) / 100


def _says_more(text: str, verdict: re.Match[str]) -> bool:
    rest = text[: verdict.start()] + " " + text[verdict.end() :]
    return len(WORD.findall(rest)) >= FEWEST_WORDS


KIND = "next_turn_calibration"
SHRINKAGE = 4.0
"""Thumbs that an assumed chance is worth: so few thumbs move a chance by half."""


@dataclass(frozen=True)
class Calibration:
    """What readings are worth for one agent: how often people called the answer before good, by
    reading, among the training rows.

    `classifier` names what made the readings: "rules", or a model.
    """

    counts: Mapping[ReplyReading, tuple[int, int]]
    """Reading -> answers that people called good, and bad."""
    classifier: str = "rules"

    def chance(self, reading: ReplyReading) -> float:
        """Return the probability that the answer before is good: the share of good ones, shrunk
        towards the assumed probability where there are few."""
        good, bad = self.counts.get(reading, (0, 0))
        return (good + SHRINKAGE * PRIORS[reading]) / (good + bad + SHRINKAGE)

    def judged(self, reading: ReplyReading) -> int:
        """Return the number of answers with people's thumbs that a chance is based on."""
        return sum(self.counts.get(reading, (0, 0)))

    def to_json(self) -> dict[str, Any]:
        """Return the parts `counts` and `classifier` of a document."""
        counts = {str(reading): list(pair) for reading, pair in self.counts.items()}
        return {"counts": counts, "classifier": self.classifier}

    @classmethod
    def of(cls, document: Any) -> Calibration:
        """Read a calibration from its document. Raises InputError for anything else."""
        try:
            counts = {}
            for name, (good, bad) in document["counts"].items():
                if min(good, bad) < 0 or not isinstance(good + bad, int):
                    raise ValueError(f"{name} has the counts {good!r} and {bad!r}")
                counts[ReplyReading(name)] = (good, bad)
            return cls(counts, str(document["classifier"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "calibration of next_turn",
                f"it cannot be parsed ({error})",
                "Fit it: thumbwheel reward calibrate --agent AGENT",
            ) from None
