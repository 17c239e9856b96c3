"""Names that people cannot tell from each other: by case, by width or composition of characters,
and by letters of other scripts that look like Latin ones.

Two of them would let somebody pass for another in lists, reports and the audit log. Unicode has a
longer list of look-alikes (UTS 39); here are the letters of Cyrillic and Greek, which keyboards
have.
"""

from __future__ import annotations

import unicodedata

from thumbwheel.core.normal_form import normal_form

ALIKE = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC")
"""Scripts with letters that look like those of another one of them."""
LOOKS_LIKE = {
    "a": "\u0430\u03b1",
    "b": "\u0432\u03b2",
    "c": "\u0441",
    "d": "\u0501",
    "e": "\u0435\u03b5",
    "h": "\u04bb\u043d\u03b7",
    "i": "\u0456\u03b9",
    "j": "\u0458",
    "k": "\u043a\u03ba",
    "m": "\u043c\u03bc",
    "n": "\u03bd",
    "o": "\u043e\u03bf",
    "p": "\u0440\u03c1",
    "q": "\u051b",
    "s": "\u0455",
    "t": "\u0442\u03c4",
    "w": "\u051d",
    "x": "\u0445\u03c7",
    "y": "\u0443\u03c5",
    "z": "\u03b6",
}
"""Latin letter -> small letters of Cyrillic and Greek that look like it, or do so as capitals."""
TO_LATIN = {ord(char): latin for latin, alike in LOOKS_LIKE.items() for char in alike}
SEPARATORS = str.maketrans({"_": "-", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2212": "-"})


def looks_of(name: str) -> str:
    """Return a text that is the same for names that look the same.

    >>> looks_of("Mobile_App") == looks_of("mobile-app")
    True
    >>> looks_of("ann") == looks_of("anna")
    False
    """
    folded = normal_form("NFKC", normal_form("NFKC", name).casefold())
    visible = "".join(char for char in folded if unicodedata.category(char) != "Cf")
    return " ".join(visible.translate(TO_LATIN).translate(SEPARATORS).split())


def scripts_of(name: str) -> list[str]:
    """Return those scripts of its letters of which some look like letters of another one.

    >>> scripts_of("J\u00f6rg \u65e5\u672c"), scripts_of("\u0430nn")
    (['Latin'], ['Cyrillic', 'Latin'])
    """
    words = {unicodedata.name(char, "").partition(" ")[0] for char in name if char.isalpha()}
    return sorted(word.capitalize() for word in words & set(ALIKE))
