"""What every crash test needs: processes to kill."""

from collections.abc import Iterator

import pytest

from tests.support.children import Children


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest) -> Iterator[Children]:
    """Processes to be killed; nothing of them is left when the tests end, however they end.

    ``SPARE`` of the module: how many wait with a session of their own.
    """
    pool = Children(getattr(request.module, "SPARE", 1))
    try:
        pool.prepare()
        yield pool
    finally:
        pool.end_all()
