"""Every error that ackledger raises, classed by what the caller can do about it.

LedgerError
├── DeclarationError     the pipeline's definition is wrong: fix the code
├── ConfigurationError   a setting, the database or the storage is not as needed: fix the set-up
├── InputError           a file or an interval is not as declared: fix the input, run again
├── StageError           a stage's own function broke its contract: fix the stage, run again
├── FencedError          a newer attempt, or a settlement, owns the work: stop, nothing is lost
├── NotReadyError        the batch is not in the state for this: wait, or run what is missing
│   └── BackPressureError    as many records are pending as a pipeline bears: wait
├── IntegrityError       what is stored differs from what was recorded: the batch is on hold
│   └── LostFileError        a file that was written is gone or changed: put it back, or rerun
├── TooManyFailedError   more records failed than a pipeline allows: the batch is on hold
└── UnavailableError     Spark, the database or a file system did not answer: run again later
    └── WaitedError          and it was waited for long enough: a lock, or a sink's database
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_log = logging.getLogger(__name__)


# What a driver exits with (EX_DATAERR of sysexits.h) where the same attempt again would only fail
# again.
EXIT_PERMANENT = 65
_PACKAGE = f"{Path(__file__).parent}/"
MASK = "***"  # stands for what is not to be shown


class LedgerError(Exception):
    """Base of all errors of ackledger; its text says what was expected, found, where, what to do.

    ``permanent``: until a person has changed something, another attempt fails just so. ``quotes``:
    the parts of the text that are somebody else's words, which may hold a value of a record.
    ``lines``: of a text of several things, each of them, for a terminal.
    """

    permanent = False
    lines: tuple[str, ...] = ()

    def __init__(self, message: str = "", *, quotes: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.quotes = tuple(quotes)


class DeclarationError(LedgerError):
    """A pipeline's definition is wrong."""

    permanent = True


class ConfigurationError(LedgerError):
    """A setting, the database or the storage is not as needed."""

    permanent = True


class InputError(LedgerError):
    """A source file, an interval or an argument is not as declared."""

    permanent = True


class StageError(LedgerError):
    """A stage's function broke its contract, for example by dropping the anchor column."""


class FencedError(LedgerError):
    """A newer attempt or a settlement owns the work; the caller must stop."""


class NotReadyError(LedgerError):
    """The batch is not in the state that the call needs."""


class BackPressureError(NotReadyError):
    """Beside what is undecided a batch has no room (``max_pending``): it may open later."""


class IntegrityError(LedgerError):
    """Rows, edges, XOR or files differ from what was recorded."""


class LostFileError(IntegrityError):
    """A file that a run wrote is gone, or was changed since."""


class TooManyFailedError(LedgerError):
    """More than ``max_failed_ratio`` of a batch's records failed through their own fault."""


class UndecidedError(LedgerError):
    """A person has to decide on a batch that has run: another attempt would run all of it again."""

    permanent = True


class UnavailableError(LedgerError):
    """Spark, the database or a file system did not answer; the call may be repeated."""


class WaitedError(UnavailableError):
    """What is needed was waited for already: to repeat the call at once would only wait longer."""


def redacted(
    exc: Exception, kind: type[LedgerError] = LedgerError, named: str | None = None
) -> LedgerError:
    """The same failure without words that may hold a value of a record, for a pipeline that has
    columns to redact. Raise it from None: its cause has the words. Notes of others go with them.

    ``kind``, ``named``: of an error that is none of these, what it is and how it is told.
    """
    told, notes = MASK, list[str]()
    if isinstance(exc, LedgerError):
        kind, told, notes = type(exc), _without_quotes(exc), getattr(exc, "__notes__", notes)
    if told == MASK:
        told = f"{named or type(exc).__name__}. Its words may hold what the pipeline redacts: they"
        told += " are left out"
    made = kind(told)
    for note in notes:
        made.add_note(note)
    return made


def quoted(exc: LedgerError) -> tuple[str, ...]:
    """The parts of its text that are somebody else's words: those that it names. All of it where it
    names none and others have raised it, as a stage's function may."""
    return exc.quotes or ((str(exc),) if _is_raised_by_others(exc) else ())


def _without_quotes(exc: LedgerError) -> str:
    """The text with a mask for each of its quotes; no more than a mask if one is not found in it,
    for the text may have been cut or worded anew since."""
    told = whole = str(exc)
    for part in sorted(filter(None, quoted(exc)), key=len, reverse=True):
        if part not in whole:
            return MASK
        told = told.replace(part, MASK)
    return told


def _is_raised_by_others(exc: BaseException) -> bool:
    raised = exc.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    return raised is not None and not raised.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of an error message: what may have been meant."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


class Failures:
    """Of works that do not wait for each other: each is tried, and the first failure is raised
    at the end.

    ``told``: how a failure is told. ``hidden``: made of it first, where words of it are not to be
    told.
    """

    def __init__(
        self,
        told: Callable[[Exception], str],
        hidden: Callable[[Exception], Exception] = lambda exc: exc,
    ) -> None:
        self._told = told
        self._hidden = hidden
        self._found: list[Exception] = []

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Log an error of this block and go on; ``raise_first`` raises the first."""
        try:
            yield
        except Exception as exc:
            failure = self._hidden(exc)
            _log.warning("the rest goes on without this: %s", self._told(failure))
            self._found.append(failure)

    def raise_first(self) -> None:
        """Raise the first, if there is one."""
        for failure in self._found:
            raise failure
