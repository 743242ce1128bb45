"""What every crash test needs: processes to kill."""

from collections.abc import Iterator

import pytest

from ledger.deltas import spans
from tests.support import orders
from tests.support.children import Children


@pytest.fixture(scope="module", autouse=True)
def few_spans() -> Iterator[None]:
    """Records of the orders share rows, also where no other process drives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "MOST_SPANS", orders.MOST_SPANS)
        yield


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest) -> Iterator[Children]:
    """Processes to be killed; nothing of them is left when the tests end, however they end.

    ``SPARE`` of the module: how many wait with a session of their own.
    """
    items = [item for item in request.session.items if item.module is request.module]
    cases = [item.callspec.params.get("case") for item in items if hasattr(item, "callspec")]
    kills = sum(getattr(case, "spark", True) for case in cases)
    pool = Children(getattr(request.module, "SPARE", 1), kills)
    try:
        yield pool
    finally:
        pool.end_all()
