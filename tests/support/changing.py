"""Files that change once their records are counted, and what is to be raised then."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from ledger.errors import InputError
from ledger.spark.failures import error_text, translated

# Other bytes of a file that begins with the line n,s and has a name 2; None: the file is deleted.
CHANGES: Mapping[str, Callable[[bytes], bytes | None]] = {
    "replaced": lambda data: data.replace(b"name 2", b"nane 2"),
    "truncated": lambda data: data[:-12],
    "emptied": lambda data: b"",
    "longer within": lambda data: data.replace(b"n,s\n", b"n,s\n0,\n"),
    "appended": lambda data: data + b"2,more\n",
    "deleted": lambda data: None,
}
# No words for people: a traceback, or a trace of Java's.
FOREIGN = re.compile(r"py4j|Traceback|org\.apache|\n")


@contextmanager
def named(path: object) -> Iterator[None]:
    """What the block raises is one line for people: which file it is, and what to do,
    whichever step or task reads it."""
    with pytest.raises(Exception, match=re.escape(str(path))) as caught:
        yield
    assert isinstance(translated(caught.value), InputError)
    words = error_text(caught.value)
    assert words.startswith("source file ")
    assert "back as it was, or read the interval again with --reprocess" in words
    assert not FOREIGN.search(words)
