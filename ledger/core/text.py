"""Texts of records and of people, as a terminal, a log and PostgreSQL tolerate them."""

from unicodedata import category

CUT = "... (cut)"  # ends what was longer
MOST_REASON = 500  # characters; an index holds drops by their reason, of at most 2,700 bytes


def printable(text: str) -> str:
    """Text without what would command a terminal: escapes, controls, marks of direction."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" or category(sign) == "Zs" else "\ufffd"
        for sign in text
    )


def storable(text: str) -> str:
    """Text as PostgreSQL can keep it: it has no NUL character, and no half of a character."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")


def as_reason(text: str) -> str:
    """A stage's reason as every store can hold it: lone surrogates and NUL characters are spelled
    out, and what is longer than any reason is cut."""
    return cut(text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00"))


def cut(reason: str) -> str:
    """A reason that is no longer than one may be."""
    return reason if len(reason) <= MOST_REASON else f"{reason[:MOST_REASON]}{CUT}"


def quantity(number: int, noun: str, nouns: str | None = None) -> str:
    """A number of things, as '1 record' and '12,345 records'; ``nouns``: unless an s makes many."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"
