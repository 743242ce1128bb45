"""Every error that ackledger raises, classed by what the caller can do about it.

LedgerError
├── DeclarationError     the pipeline's definition is wrong: fix the code
├── ConfigurationError   a setting, the database or the storage is not as required: change it
│   └── UnseenFilesError     this machine cannot read the runs' files: run it where they are
├── InputError           a file or an interval is not as declared: fix the input, rerun
├── StageError           a stage's own function broke its contract: fix the stage, rerun
├── CarryError           rows cannot be followed through an operation: write it otherwise
├── FencedError          a newer attempt, or a settlement, owns the work: stop, nothing is lost
├── NotReadyError        the batch is not in the state for this: wait, or run what is missing
│   └── BackPressureError    as many records are pending as a pipeline tolerates: wait
├── IntegrityError       what is stored differs from what was recorded: the batch is on hold
│   └── LostFileError        a file that was written is gone or changed: put it back, or rerun
├── RejectedPlanError    stages of one plan did not account for every row: they run one by one
├── TooManyFailedError   more records failed than a pipeline allows: the batch is on hold
├── UndecidedError       a person has to decide on the batch: decide, do not retry
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
    """Return words as a quote with marks, for the text of an error or a reason. Quote every text
    that is not ackledger's own and may contain a value of a record. Marks in the words are removed.

    ``instead``: the text that is shown in place of the words if the pipeline redacts columns: a
    class, a code or a place; by default ``MASK``.
    """
    text = _MARK.sub("", shown(str(words)))
    bare = _MARK.sub("", shown(instead, masks=True))
    return f"{QUOTE}{text}{'' if bare == MASK else INSTEAD + bare}{UNQUOTE}"


def shown(text: str, *, masks: bool = False) -> str:
    """Return a text without the marks of its quotes. ``masks``: replace each quote by its
    ``instead``.

    All texts of errors, and all reasons in the ledger, are masked only here.
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
    """A setting, the database or the storage is not as required: change it, then run this again."""

    permanent = True


class InputError(LedgerError):
    """A source file, an interval or an argument is not as declared or as expected."""

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
    """A batch cannot open, or a replay cannot claim records, because ``max_pending`` records of a
    source are pending. It can once other batches have settled.
    """


class IntegrityError(LedgerError):
    """Rows, edges, their XOR, or files differ from what was recorded when they were written."""


class LostFileError(IntegrityError):
    """A file that a run wrote is gone, or was changed since."""


class UnseenFilesError(ConfigurationError):
    """This machine cannot read the storage where runs have written their files."""


class RejectedPlanError(LedgerError):
    """Steps that ran as one plan did not account for every row, one of them raised an error, or a
    function asks for rows. No run of the plan counts, and the caller runs each step by itself.
    """


class TooManyFailedError(LedgerError):
    """More than ``hold_above`` of a batch's records failed through their own fault. The batch is on
    hold.
    """


class UndecidedError(LedgerError):
    """All steps of a batch have run, and a person has to decide on it. A retry would only run it
    again.
    """

    permanent = True


class UnavailableError(LedgerError):
    """Spark, the database or a file system did not answer; the call may be repeated."""


class WaitedError(UnavailableError):
    """A lock, a database or other writers did not become free in time. An immediate retry would
    only wait again.
    """


def redacted(
    exc: Exception, kind: type[LedgerError] = LedgerError, named: str | None = None
) -> LedgerError:
    """Return an error without text that may contain a value of a record, for a pipeline that
    redacts columns. Raise it ``from None``, because its cause has the text. Notes are kept only of
    errors that ackledger raised.

    ``kind``: the class to return if the error is no LedgerError.
    ``named``: the name to show for an error whose message is hidden as a whole; None: its class,
    and the place where other code raised it.
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
    """Return the message with the marks of its quotes, without the period at its end, so that a
    sentence can continue after it.
    """
    return re.sub(rf"[. ]+({UNQUOTE}?)$", r"\1", marked_text(exc))


def _foreign_place(exc: BaseException) -> str | None:
    """Return the place where code other than ackledger's raised an error. None: ackledger raised
    it, or it was not raised.
    """
    raised = exc.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    if raised is None or raised.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return None
    code = raised.tb_frame.f_code
    return f"{code.co_filename}:{raised.tb_lineno}, in {code.co_name}"


def together(failures: Sequence[LedgerError], what: str, most: int | None = None) -> LedgerError:
    """Return one error with the numbered messages of all failures, and with the class of the first.
    A single failure is returned unchanged.

    ``what``: a plural noun for the things that are wrong.
    ``most``: how many messages to include; the others are only counted. None: all.
    """
    if len(failures) == 1:
        return failures[0]
    first = failures[:most]
    texts = [f"({number}) {clause(exc)}" for number, exc in enumerate(first, 1)]
    if len(first) < len(failures):
        texts.append(f"and {len(failures) - len(first):,} more")
    return base_class_of(failures[0])(f"{len(failures):,} {what} are wrong: {'; '.join(texts)}")


def suggestion(name: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message: the candidate that the user may have meant, else all
    candidates. Empty if there are none.
    """
    names = sorted(candidates)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""
