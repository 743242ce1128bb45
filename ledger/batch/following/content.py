"""Keep what failed records contain."""

from collections.abc import Sequence

from ledger.batch.following.base import FollowUp, Surroundings


def _keep(at: Surroundings, batch_id: int) -> Sequence[object]:
    from ledger.batch.payloads import try_to_keep

    try_to_keep(at.database, batch_id)
    return ()


KEEP = FollowUp(
    "keep", "Copy what failed records contain into the ledger, for explain and replays.", here=_keep
)
