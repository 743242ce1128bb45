"""Every error that ackledger raises, classed by what the caller can do about it.

LedgerError
├── DeclarationError     the pipeline's definition is wrong: fix the code
├── ConfigurationError   a setting, the database or the storage is not as needed: fix the set-up
├── InputError           a file or an interval is not as declared: fix the input, rerun
├── StageError           a stage's own function broke its contract: fix the stage, rerun
├── CarryError           rows cannot be followed through an operation: write it otherwise
├── FencedError          a newer attempt, or a settlement, owns the work: stop, nothing is lost
├── NotReadyError        the batch is not in the state for this: wait, or run what is missing
│   └── BackPressureError    as many records are pending as a pipeline tolerates: wait
├── IntegrityError       what is stored differs from what was recorded: the batch is on hold
│   └── LostFileError        a file that was written is gone or changed: put it back, or rerun
├── TooManyFailedError   more records failed than a pipeline allows: the batch is on hold
└── UnavailableError     Spark, the database or a file system did not answer: retry later
    └── WaitedError          and it was waited for long enough: a lock, or a sink's database
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

_log = logging.getLogger(__name__)


# The exit code of a driver (EX_DATAERR of sysexits.h) where a retry would only fail the same way.
EXIT_PERMANENT = 65
_PACKAGE = f"{Path(__file__).parent}/"
MASK = "***"  # stands for what is not to be shown


class LedgerError(Exception):
    """Base of all errors of ackledger; its text has what was expected, found, where, what to do.

    ``permanent``: until a person has changed something, a retry fails the same way. ``quotes``:
    the parts of the text that quote others, which may hold a value of a record.
    ``lines``: of a text of several things, each of them, for a terminal.
    """

    permanent = False
    lines: tuple[str, ...] = ()

    def __init__(self, message: str = "", *, quotes: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.quotes = tuple(map(str, quotes))


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


class CarryError(LedgerError):
    """The records of a plan's rows cannot be followed through one of its operations."""

    permanent = True


class FencedError(LedgerError):
    """A newer attempt or a settlement owns the work; the caller must stop."""


class NotReadyError(LedgerError):
    """The batch is not in the state that the call needs."""


class BackPressureError(NotReadyError):
    """Undecided records leave a batch no room (``max_pending``): it may open later."""


class IntegrityError(LedgerError):
    """Rows, edges, XOR or files differ from what was recorded."""


class LostFileError(IntegrityError):
    """A file that a run wrote is gone, or was changed since."""


class UnseenFilesError(ConfigurationError):
    """Files of runs lie where this machine does not see them."""


class TooManyFailedError(LedgerError):
    """More than ``hold_above`` of a batch's records failed through their own fault."""


class UndecidedError(LedgerError):
    """A person has to decide on a batch that has run: a retry would rerun all of it."""

    permanent = True


class UnavailableError(LedgerError):
    """Spark, the database or a file system did not answer; the call may be repeated."""


class WaitedError(UnavailableError):
    """A lock, a database or other writers were waited for in vain: an immediate retry would only
    wait longer.
    """


def redacted(
    exc: Exception, kind: type[LedgerError] = LedgerError, named: str | None = None
) -> LedgerError:
    """The same failure without words that may hold a value of a record, for a pipeline that has
    columns to redact. Raise it from None: its cause has the words. Notes of others are left out.

    ``kind``: the class for an error that is no LedgerError. ``named``: the name of an error whose
    text is hidden as a whole.
    """
    text, notes = MASK, list[str]()
    if isinstance(exc, LedgerError):
        kind, text = own_kind(exc), _without_quotes(exc)
        if not _is_raised_by_others(exc):
            notes = getattr(exc, "__notes__", notes)
    if text == MASK:
        text = f"{named or type(exc).__name__}. Its words may hold what the pipeline redacts: they"
        text += " are left out"
    error = kind(text)
    for note in notes:
        error.add_note(note)
    return error


def own_kind(exc: LedgerError) -> type[LedgerError]:
    """The class of this module that the error is of: one that others derive from it may be made
    with other arguments."""
    return next(kind for kind in type(exc).__mro__ if kind.__module__ == __name__)


def quoted(exc: LedgerError) -> tuple[str, ...]:
    """The parts of its text that quote others: those that it names. All of it where it
    names none and others have raised it, as a stage's function may."""
    return exc.quotes or ((str(exc),) if _is_raised_by_others(exc) else ())


def _without_quotes(exc: LedgerError) -> str:
    """The text with a mask for each of its quotes; no more than a mask if one is not found in it,
    for the text may have been cut or reworded since."""
    text = whole = str(exc)
    for part in sorted(filter(None, quoted(exc)), key=len, reverse=True):
        if part not in whole:
            return MASK
        text = text.replace(part, MASK)
    return text


def _is_raised_by_others(exc: BaseException) -> bool:
    raised = exc.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    return raised is not None and not raised.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def together(failures: Sequence[LedgerError], what: str, most: int | None = None) -> LedgerError:
    """Return one error, of the kind of the first, with the texts and quotes of all.

    ``what``: the noun for several of them. ``most``: how many texts it has; None: all.
    """
    if len(failures) == 1:
        return failures[0]
    shown = failures[:most]
    texts = [f"({number}) {str(exc).rstrip('. ')}" for number, exc in enumerate(shown, 1)]
    if len(shown) < len(failures):
        texts.append(f"and {len(failures) - len(shown):,} more")
    return own_kind(failures[0])(
        f"{len(failures):,} {what} are wrong: {'; '.join(texts)}",
        quotes=[part for exc in shown for part in quoted(exc)],
    )


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message: the candidate that the user may have meant, else all of
    them.
    """
    names = sorted(candidates)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


class Failures:
    """The failures of independent tasks: each task is tried, and the first failure is raised at
    the end.

    ``text``: the log text of a failure. ``hidden``: replaces a failure first, where its text must
    not be logged.
    """

    def __init__(
        self,
        text: Callable[[Exception], str],
        hidden: Callable[[Exception], Exception] = lambda exc: exc,
    ) -> None:
        self._text = text
        self._hidden = hidden
        self._failures: list[Exception] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Log an error of this block and go on; ``raise_first`` raises the first."""
        try:
            yield
        except Exception as exc:
            failure = self._hidden(exc)
            _log.warning("the rest goes on without this: %s", self._text(failure))
            self._failures.append(failure)

    def raise_first(self) -> None:
        """Raise the first, if there is one."""
        for failure in self._failures:
            raise failure
