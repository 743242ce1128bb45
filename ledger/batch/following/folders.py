"""Remove the folders that a batch has replaced."""

from collections.abc import Sequence

from ledger.batch.following.base import FollowUp, Surroundings


def _remove(at: Surroundings, batch_id: int) -> Sequence[object]:
    from ledger.batch.folder_cleanup import remove_replaced

    return remove_replaced(at.database, batch_id)


REMOVE = FollowUp(
    "remove", "Remove the folders of sinks that the batch has replaced.", here=_remove
)
