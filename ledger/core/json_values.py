"""Values of the user's own that the ledger keeps as JSON."""

import json
from typing import Any

from ledger.errors import StageError


def as_json(what: str, value: Any, expected: str) -> Any:
    """The value as the ledger gives it back. ``what``: returned it; ``expected``: in words.

    Raises StageError unless it is JSON.
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as exc:
        raise StageError(f"{what} returned what is no JSON ({exc}): expected {expected}") from exc
