"""Deaths in this process, at a place that ``ledger.core.probes`` names."""

from collections.abc import Iterator
from contextlib import contextmanager

from ledger.core.probes import PLACES, listening


class Died(BaseException):
    """The process is gone."""


@contextmanager
def dies_at(
    place: str,
    of: str = "",
    *,
    nth: int = 1,
    raises: BaseException | type[BaseException] = Died,
    silent: bool = False,
) -> Iterator[None]:
    """Raise in the block where ``place`` is reached, from the ``nth`` time on, for ``of`` alone if that is given.

    A run that ends so is marked failed; ``silent``: nobody says so, as of a process that was killed.
    """
    assert place in PLACES, place
    times = 0

    def listen(reached: str, reached_for: str) -> None:
        nonlocal times
        if reached == place and of in ("", reached_for):
            times += 1
            if times >= nth:
                raise raises
        if silent and reached == "before failure":
            raise raises

    with listening(listen):
        yield
