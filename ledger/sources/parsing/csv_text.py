"""Cut records of CSV into fields, by RFC 4180 or the options of their source."""

import re
from collections.abc import Callable

from ledger.sources.files.format import Format

UNCLOSED = "a quote is never closed"
PARTED = (
    "line breaks within quotes: declare the source with multiline=True if its records have them"
)
STRAY = (
    "a quote within a value: double it and enclose the value in quotes, or declare "
    "options={'quote': ''} if quotes mean nothing"
)
NO_TEXT = "a character that is none of a text: NUL, U+FFFF, or U+FEFF at its beginning"

Fields = list[str | None]


def parser_of(form: Format) -> Callable[[str], Fields]:
    """Return the function that cuts a record into its fields, None for null.

    It raises ValueError, with the reason, if there are not as many fields as columns.
    """
    dialect, count = form.dialect, len(form.names)
    separator, quote = dialect.separator, dialect.quote
    null = form.null_value or ""
    meant = {separator, quote, dialect.escape}
    wrong = [character for character in "\0\uffff" if character not in meant]

    def parse(record: str) -> Fields:
        if any(character in record for character in wrong) or record.startswith("\ufeff"):
            raise ValueError(NO_TEXT)
        if not form.multiline and ("\n" in record or "\r" in record):
            raise ValueError(PARTED)
        fields: Fields
        if quote and quote in record:
            values = dialect.all_values(record)
            if values is None:
                begun = rf"(?:{dialect.patterns[0]}{re.escape(separator)})*+{dialect.patterns[1]}"
                is_open = re.fullmatch(begun, record, re.DOTALL)
                raise ValueError(UNCLOSED if is_open else STRAY)
            fields = values
        else:
            texts = record.split(separator)
            fields = [text if text and text != null else None for text in texts]
        if len(fields) != count:
            raise ValueError(f"expected {count} fields, found {len(fields)}")
        return fields

    return parse
