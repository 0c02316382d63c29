"""The lexical terms of a text: what the lexical index stores and what a query is turned into, by one function.

A word of any script is one term, its accents folded and its ending cut by the language's stemmer. A compound name
(``R17-M1-N0-C:J12-U11``, ``core.9651``, ``user_id``, ``getUserName``) gives its whole, its parts, and every pair of
neighbouring parts, so that ``R17-M1`` is found inside the longer name and weighs more than two parts apart. What only
capitals part is also one word, so that it is found however it is written; a hexadecimal code is not parted. Scripts
written without spaces give single characters and pairs.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

import Stemmer

from muniment.policies.errors import InvalidInput
from muniment.policies.model import nfc

ENGLISH: Final = "en"
PORTUGUESE: Final = "pt"
LANGUAGES: Final = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "eo": "esperanto", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "persian",
    "fi": "finnish", "fr": "french", "ga": "irish", "hi": "hindi", "hu": "hungarian", "hy": "armenian",
    "id": "indonesian", "it": "italian", "lt": "lithuanian", "ne": "nepali", "nl": "dutch", "no": "norwegian",
    "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "st": "sesotho",
    "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip
"""The languages with a stemmer (Snowball), by their ISO 639-1 codes."""
DEFAULT_LANGUAGES: Final = (ENGLISH, PORTUGUESE)
"""What a company writes in when it does not say; the first one where a text does not tell."""

MAX_TERMS: Final = 16_384
"""Terms of one text; what follows is not searched lexically."""
MAX_TERM_CHARACTERS: Final = 64
"""A longer term is cut, alike in facts and queries."""
_MAX_PARTS: Final = 256
_LAST_MARK: Final = 0x1FFFF


def _ranges(categories: str, last: int) -> str:
    """The characters up to ``last`` whose general category starts with one of ``categories``, as a regex class body."""
    ranges: list[list[int]] = []
    kinds = map(unicodedata.category, map(chr, range(0x80, last + 1)))
    for point in (point for point, kind in enumerate(kinds, 0x80) if kind[0] in categories):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{final:08x}" for first, final in ranges)


MARKS: Final = _ranges("M", _LAST_MARK)
"""Combining marks as a regex class body: Python's ``\\w`` leaves them out and would break words of many scripts."""
WORD: Final = rf"[\w{MARKS}]"
JOINERS: Final = r"\-.:/@#+&'’\\"
"""What holds a compound name together when it stands between two word characters."""

TOKEN: Final = re.compile(rf"{WORD}+(?:(?:[{JOINERS}]{{1,2}}|(?<=\d),(?=\d)){WORD}+)*")
"""A word or compound name. Word characters and joiners are disjoint, so that matching is linear."""

_SYMBOL: Final = r"[\u2190-\u2bff\U0001f000-\U0001faff]"
_ITEM: Final = re.compile(rf"(?P<token>{TOKEN.pattern})|{_SYMBOL}")
_SPLIT: Final = re.compile(rf"[{JOINERS}_,]+")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]+")
_GROUPED_NUMBER: Final = re.compile(r"\d{1,3}(?:[.,]\d{3})+")
_SPACELESS: Final = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    r"\U00020000-\U0003ffff]+"
)


def word_set(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


STOP_WORDS: Final[dict[str, frozenset[str]]] = {
    ENGLISH: word_set(
        "a about after all also am an and any are as at be because been before but by can could did do does doing done "
        "for from get got had has have he her hers him his how i if in into is it its just let may me might mine my "
        "no nor not of off on or our ours out over own shall she should so some such than that the their theirs them "
        "then there these they this those to too under up us very was we were what when where which while who whom "
        "whose why will with would yes you your yours i'm i've i'll i'd it's that's don't didn't"
    ),
    PORTUGUESE: word_set(
        "a ao aos as às com como da das de dela dele deles do dos e é ela elas ele eles em entre era essa esse esta "
        "está este eu foi foram há isso isto já la lhe mais mas me meu minha muito na nas nem no nos nós não o os ou "
        "para pela pelo pelos por porque qual quais quando quanto que quem se sem ser seu seus são só sua suas também "
        "tem têm ter te um uma umas uns você vocês onde"
    ),
}
"""Words that carry no content of their own. They stay out of entities, and out of queries that have others."""


def check_languages(languages: Sequence[str], pointer: str = "/languages") -> tuple[str, ...]:
    """A company's languages, if there is a stemmer for each; ``InvalidInput`` names the one that has none."""
    if not languages:
        raise InvalidInput.at(pointer, "name at least one")
    for position, language in enumerate(languages):
        if language not in LANGUAGES:
            raise InvalidInput.at(
                f"{pointer}/{position}", f"no stemmer for {language!r}; there are {', '.join(LANGUAGES)}"
            )
    return tuple(languages)


def language_of(text: str, languages: Sequence[str] = DEFAULT_LANGUAGES) -> str:
    """Which of ``languages`` the text seems to be in: the one with the most function words that no other of them has,
    and letters of its own; the first where there are none."""
    if len(languages) == 1:
        return languages[0]
    start = text[:_READ_FOR_LANGUAGE].casefold()
    words = _PLAIN_WORD.findall(start)
    letters = set(start)
    evidence = [
        sum(map(telling.__contains__, words)) + len(letters & _TELLING_LETTERS.get(language, frozenset()))
        for language, telling in zip(languages, _telling_words(tuple(languages)), strict=True)
    ]
    return languages[evidence.index(max(evidence))]


def fold_accents(text: str) -> str:
    """``text`` case-folded, compatibility forms unified and combining marks of Latin, Greek and Cyrillic dropped.

    Marks of other scripts stay: there they are letters, not accents.
    """
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    kept = "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f")
    return unicodedata.normalize("NFC", kept.casefold())


def terms(text: str, language: str) -> list[str]:
    """The terms of ``text`` in order, repeated as often as they occur (BM25 counts them), at most ``MAX_TERMS``.

    ``language`` is one of ``LANGUAGES``. Linear in the text.
    """
    found: list[str] = []
    for match in _ITEM.finditer(nfc(text)):
        if match.lastgroup is None:
            found.append(match[0])
        else:
            found += _terms_of(match[0], language)
        if len(found) >= MAX_TERMS:
            del found[MAX_TERMS:]
            break
    return found


def fact_terms(text: str, languages: Sequence[str] = DEFAULT_LANGUAGES) -> list[str]:
    """The terms of a fact of a company that writes in ``languages``, its words stemmed by the text's own language."""
    text = nfc(text)
    return terms(text, language_of(text, languages))


def query_terms(text: str, languages: Sequence[str] = DEFAULT_LANGUAGES) -> list[str]:
    """The distinct terms of a query, without stop words; all of them where there is nothing else.

    A query is short and may not tell its language, so its words are stemmed by each of ``languages``: whichever
    language a fact was stemmed by, one of them meets it.
    """
    text = nfc(text)
    own = language_of(text, languages)
    stopped = _stopped_terms(own)
    unique = list(dict.fromkeys(terms(text, own)))
    found = [term for term in unique if term not in stopped]
    # A stem of another language that looks like a function word of this one would match everywhere.
    for language in languages if found else ():
        if language != own:
            kept = (w for w in terms(text, language) if w not in stopped and w not in _stopped_terms(language))
            found.extend(dict.fromkeys(kept))
    return list(dict.fromkeys(found)) or unique


def _terms_of(token: str, language: str) -> Sequence[str]:
    """The terms of one word or compound name."""
    # Texts repeat their words; what is too long to be one is not worth remembering.
    return _known_terms(token, language) if len(token) <= MAX_TERM_CHARACTERS else _token_terms(token, language)


@lru_cache(maxsize=32_768)
def _known_terms(token: str, language: str) -> tuple[str, ...]:
    return tuple(_token_terms(token, language))


def _token_terms(token: str, language: str) -> list[str]:
    if token.isalpha() and (token.islower() or token.istitle()) and token.isascii():
        return [stem(token.lower(), language)]
    found: list[str] = []
    parts: list[str] = []
    for piece in filter(None, _SPLIT.split(token)):
        words = [piece] if _HEXADECIMAL.fullmatch(piece) else _CAMEL.split(piece)
        parts += words
        if len(words) > 1:
            found.append(stem(fold_accents(piece), language))
    del parts[_MAX_PARTS:], found[_MAX_PARTS:]
    if len(parts) > 1 and parts[-1].lower() in _CLITICS:
        parts.pop()
    folded = [part for part in map(fold_accents, parts) if part]
    for part in folded:
        if _SPACELESS.search(part):
            _spaceless_terms(part, language, found)
        else:
            found.append(stem(part, language))
    if len(folded) > 1:
        found.extend(f"{first}-{second}"[:MAX_TERM_CHARACTERS] for first, second in pairwise(folded))
        if len(folded) > 2:
            found.append("-".join(folded)[:MAX_TERM_CHARACTERS])
        if _GROUPED_NUMBER.fullmatch(token):
            found.append("".join(folded))
    return found


_CLITICS: Final = frozenset({"s", "t", "m", "d", "ll", "re", "ve"})


def _spaceless_terms(part: str, language: str, found: list[str]) -> None:
    """Characters and pairs of the spaceless runs in ``part``; what stands between them is a word."""
    position = 0
    for run in _SPACELESS.finditer(part):
        if run.start() > position:
            found.append(stem(part[position : run.start()], language))
        characters = run[0]
        found.extend(characters)
        found.extend(characters[i : i + 2] for i in range(len(characters) - 1))
        position = run.end()
    if position < len(part):
        found.append(stem(part[position:], language))


class _Stemmers(threading.local):
    """One set of stemmers per thread: a Snowball stemmer keeps its word in itself while it works."""

    def __init__(self) -> None:
        self.by_language: dict[str, Stemmer.Stemmer] = {}

    def get(self, language: str) -> Stemmer.Stemmer:
        stemmer = self.by_language.get(language)
        if stemmer is None:
            stemmer = self.by_language[language] = Stemmer.Stemmer(LANGUAGES[language])
        return stemmer


_stemmers = _Stemmers()


def stem(word: str, language: str) -> str:
    """``word`` (folded) without its ending, at most ``MAX_TERM_CHARACTERS``; a word with a digit stays as it is."""
    if len(word) > MAX_TERM_CHARACTERS:
        return word[:MAX_TERM_CHARACTERS]
    if not word.isalpha():
        return word
    if language == PORTUGUESE:
        word = _portuguese_singular(word)
    stemmed: str = _stemmers.get(language).stemWord(word)
    return fold_accents(stemmed) or word


def _portuguese_singular(word: str) -> str:
    """Brings the plurals of -ão together and restores letters that folding took from the stemmer's rules."""
    for ending in ("oes", "aes", "aos"):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            word = word[: -len(ending)] + "ao"
            break
    if word.endswith("cao") and len(word) > 4:
        return word[:-3] + "ção"
    return word


_READ_FOR_LANGUAGE: Final = 1_000
_PLAIN_WORD: Final = re.compile(rf"{WORD}+")


def _letters(first: str, last: str) -> frozenset[str]:
    return frozenset(map(chr, range(ord(first), ord(last) + 1)))


_CYRILLIC, _ARABIC, _DEVANAGARI = _letters("Ѐ", "ӿ"), _letters("\u0600", "\u06ff"), _letters("\u0900", "\u097f")
_TELLING_LETTERS: Final = {
    PORTUGUESE: frozenset("ãõçâêôáéíóú"),
    "ru": _CYRILLIC,
    "sr": _CYRILLIC,
    "ar": _ARABIC,
    "fa": _ARABIC,
    "hi": _DEVANAGARI,
    "ne": _DEVANAGARI,
    "el": _letters("\u0370", "\u03ff"),
    "hy": _letters("\u0530", "\u058f"),
    "ta": _letters("\u0b80", "\u0bff"),
    "yi": _letters("\u0590", "\u05ff"),
}


@lru_cache(maxsize=64)
def _telling_words(languages: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    """For each language, its function words that no other of them has."""
    words = [STOP_WORDS.get(language, frozenset()) for language in languages]
    others = [frozenset[str]().union(*words[:i], *words[i + 1 :]) for i in range(len(words))]
    return tuple(own - other for own, other in zip(words, others, strict=True))


@lru_cache(maxsize=64)
def _stopped_terms(language: str) -> frozenset[str]:
    return frozenset(term for word in STOP_WORDS.get(language, ()) for term in terms(word, language))
