"""Combine anchors in a stage with ``anchors="merged_by_hand"``, where ``_anchor`` is a list: the
records that a row comes from.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_NAME = "_anchor"


def merge_anchors(*anchors: "Column | str") -> "Column":
    """Return the ``_anchor`` of a row that comes from several records, for stages with
    ``anchors="merged_by_hand"``. Example of a join: ``merge_anchors("o._anchor", "c._anchor")``.

    Pass columns or their names. A null anchor, which an outer join leaves, is ignored. A record
    that is in several anchors counts once.
    """
    from pyspark.sql import functions as F

    if not anchors:
        raise TypeError("merge_anchors(): expected the anchors to merge, found none")
    columns = [F.col(anchor) if isinstance(anchor, str) else anchor for anchor in anchors]
    return F.concat(*(F.coalesce(column, F.array()) for column in columns)).alias(_NAME)


def collect_anchors(anchor: "Column | str" = _NAME) -> "Column":
    """Return the ``_anchor`` of a group as an aggregate: all records that its rows come from. For
    stages with ``anchors="merged_by_hand"``.
    """
    from pyspark.sql import functions as F

    return F.flatten(F.collect_list(anchor)).alias(_NAME)
