"""Request units again without the records that were quarantined."""

from collections.abc import Sequence

from sqlalchemy import Connection

from ledger.batch.following.base import Pending, WithoutSpark
from ledger.batch.surroundings import Surroundings


class Rebuild(WithoutSpark):
    """See ``ledger.batch.rebuilds``. What it changes decides what is withheld."""

    name = "rebuild"
    does = "Request units again without the records of them that were quarantined."
    has_task = False
    of_batch = True

    def run(self, at: Surroundings, batch_id: int) -> Sequence[object]:
        from ledger.batch.rebuilds import rebuild

        return rebuild(at, batch_id)

    def pending(self, connection: Connection, batch_id: int, steps: int) -> Pending | None:
        sentence = "units of it are yet to be replayed without their quarantined records"
        return Pending(self.name, 1, (sentence,)) if steps else None
