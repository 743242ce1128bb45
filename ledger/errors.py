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
├── RejectedPlanError    several stages in one job did not explain every row: they run one by one
├── TooManyFailedError   more records failed than a pipeline allows: the batch is on hold
└── UnavailableError     Spark, the database or a file system did not answer: retry later
    └── WaitedError          and it was waited for long enough: a lock, or a sink's database
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

# The exit code of a driver (EX_DATAERR of sysexits.h) where a retry would only fail the same way.
EXIT_PERMANENT = 65
_PACKAGE = f"{Path(__file__).parent}/"
MASK = "***"  # stands for what is not to be shown
# Around what is quoted of others, and before what stands for it where the pipeline redacts.
QUOTE, INSTEAD, UNQUOTE = "\x02", "\x04", "\x03"  # Python and Java take none for a blank
MARKS = QUOTE + INSTEAD + UNQUOTE
# A text that was cut has no end: its quote goes on to the next one.
_QUOTED = re.compile(f"{QUOTE}([^{MARKS}]*)(?:{INSTEAD}([^{MARKS}]*))?(?:{UNQUOTE}|(?={QUOTE})|$)")
_MARK = re.compile(f"[{MARKS}]")


def quote(words: object, instead: str = MASK) -> str:
    """Mark words that are not the ledger's own, such as a value of a record, within a text.

    ``instead``: what is shown of them where the pipeline redacts: a class, a code, a place.
    """
    text = _MARK.sub("", shown(str(words)))
    bare = _MARK.sub("", shown(instead, masks=True))
    return f"{QUOTE}{text}{'' if bare == MASK else INSTEAD + bare}{UNQUOTE}"


def shown(text: str, *, masks: bool = False) -> str:
    """Return a text without marks, with its quotes, or with what stands for these if it ``masks``.

    This is the only place that decides: of the reasons in the ledger, and of errors.
    """
    if QUOTE not in text:
        return text
    return _QUOTED.sub(lambda quoted: (quoted[2] or MASK) if masks else quoted[1], text)


class LedgerError(Exception):
    """Base class of ackledger's errors. The message says what was expected, what was found, where,
    and what to do.

    Text in the message that may contain a value of a record is marked by ``quote``; ``str()``
    removes the marks.

    ``permanent``: whether a retry fails the same way until a person changes something.
    ``lines``: the parts of a message about several things, one for each line on a terminal; empty:
    the message has one part.
    """

    permanent = False
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shown(super().__str__())


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
    """A stage's function broke its contract, for example with rows that come from no record."""


class CarryError(LedgerError):
    """The records of a stage's or a job's rows cannot be followed through its frames.

    ``anchors``: the value of the stage's option ``anchors`` with which its function can track rows
    by hand; empty: no value helps.
    """

    permanent = True

    def __init__(self, message: str, anchors: str = ""):
        super().__init__(message)
        self.anchors = anchors


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


class RejectedPlanError(LedgerError):
    """Stages that ran as one plan did not explain every row: nothing of the plan counts, and the
    caller runs them one by one.
    """


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
    text, notes, place = MASK, list[str](), _foreign_place(exc)
    if isinstance(exc, LedgerError):
        kind, text = base_class_of(exc), shown(marked_text(exc), masks=True)
        if place is None:
            notes = getattr(exc, "__notes__", notes)
    if text == MASK:
        name = named or type(exc).__name__ + (f" ({place})" if place else "")
        text = f"{name}. Its words may hold what the pipeline redacts: they are left out"
    error = kind(text)
    for note in notes:
        error.add_note(note)
    return error


def base_class_of(exc: LedgerError) -> type[LedgerError]:
    """Return the class of an error that this module defines: the nearest base class. Subclasses in
    other modules may take other arguments, so they cannot be built from a message.
    """
    return next(kind for kind in type(exc).__mro__ if kind.__module__ == __name__)


def marked_text(exc: LedgerError) -> str:
    """Return the message with the marks of its quotes. If other code than ackledger's raised the
    error, such as a stage's function, the whole message becomes a quote: a value in it could look
    like a mark.
    """
    text = Exception.__str__(exc)
    return quote(text) if _foreign_place(exc) else text


def clause(exc: LedgerError) -> str:
    """The marked text without the period at its end, to be continued."""
    return re.sub(rf"[. ]+({UNQUOTE}?)$", r"\1", marked_text(exc))


def _foreign_place(exc: BaseException) -> str | None:
    """The place in other code than the ledger's where an error was raised; None if it was not."""
    raised = exc.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    if raised is None or raised.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return None
    code = raised.tb_frame.f_code
    return f"{code.co_filename}:{raised.tb_lineno}, in {code.co_name}"


def together(failures: Sequence[LedgerError], what: str, most: int | None = None) -> LedgerError:
    """Return one error, of the kind of the first, with the texts of all.

    ``what``: the noun for several of them. ``most``: how many texts it has; None: all.
    """
    if len(failures) == 1:
        return failures[0]
    first = failures[:most]
    texts = [f"({number}) {clause(exc)}" for number, exc in enumerate(first, 1)]
    if len(first) < len(failures):
        texts.append(f"and {len(failures) - len(first):,} more")
    return base_class_of(failures[0])(f"{len(failures):,} {what} are wrong: {'; '.join(texts)}")


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message: the candidate that the user may have meant, else all of
    them.
    """
    names = sorted(candidates)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
