"""The end of a script that does something the audit can neither do nor leave out."""

from typing import ClassVar

from ledger.lineage.sites import UNKNOWN, user_line


class ScriptStop(BaseException):
    """Ends the script at a line. No ``except Exception`` of the script catches it.

    Attributes:
        place: the line, as ``file:line``.
        what: what it does there, and what to do instead.
        raised: all of this script, because a bare ``except`` or a thread may catch one.
    """

    raised: ClassVar[list["ScriptStop"]] = []

    def __init__(self, what: str) -> None:
        self.place = user_line() or UNKNOWN
        self.what = what
        super().__init__(f"{self.place}: {what}")
        self.raised.append(self)


def first_line(message: str) -> str:
    """Return the line of an error's message that says what is wrong: a worker's own, or Java's."""
    message = message.strip()
    for mark in ("\n: ", "Traceback (most recent call last):\n"):
        message = message.rpartition(mark)[2]
    return next((line for line in message.split("\n") if not line.startswith(" ")), "")
