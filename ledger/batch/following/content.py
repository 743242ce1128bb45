"""Keep the content of failed records."""

from collections.abc import Sequence

from ledger.batch.following.base import WithoutSpark
from ledger.batch.surroundings import Surroundings


class Keep(WithoutSpark):
    """See ``ledger.batch.records.payloads``."""

    name = "keep"
    does = "Copy what failed records contain into the ledger, for explain and replays."
    has_task = False

    def run(self, at: Surroundings, batch_id: int) -> Sequence[object]:
        from ledger.batch.records.payloads import try_to_keep

        try_to_keep(at.database, batch_id)
        return ()
