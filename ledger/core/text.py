"""Texts of records and of users in forms that are safe for terminals, logs and PostgreSQL."""

from unicodedata import category

CUT = "... (cut)"  # ends what was longer
MOST_REASON = 500  # characters; an index holds drops by their reason, of at most 2,700 bytes


def printable(text: str) -> str:
    """Return a text without escape sequences, control characters and direction marks."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" or category(sign) == "Zs" else "\ufffd"
        for sign in text
    )


def storable(text: str) -> str:
    """Return a text that PostgreSQL can store: each NUL is replaced by U+FFFD, each lone surrogate
    by its backslash escape.
    """
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")


def as_reason(text: str) -> str:
    """Return a stage's reason in a form that every store can hold: with lone surrogates and NUL
    characters escaped, and cut to the longest reason.
    """
    return cut(text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00"))


def cut(reason: str) -> str:
    """Return a reason cut to ``MOST_REASON`` characters. A reason that was cut before stays
    unchanged.
    """
    most = MOST_REASON + (len(CUT) if reason.endswith(CUT) else 0)
    return reason if len(reason) <= most else f"{reason[:MOST_REASON]}{CUT}"


def quantity(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun, such as '1 record' or '12,345 records'.

    ``nouns``: an irregular plural.
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"
