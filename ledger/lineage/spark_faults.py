"""Faults of versions of Spark that an option of the session avoids."""

from pyspark.sql import SparkSession

# SPARK-58241: a Python UDF directly over columns of files, or of a cache, waits for ever.
_FAULTY = "4.2.0"
_COLUMNAR_UDFS = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"


def avoid_known_faults(spark: SparkSession) -> None:
    """Set options that keep this version of Spark from hanging, unless the user has set them."""
    if spark.version.startswith(_FAULTY) and spark.conf.get(_COLUMNAR_UDFS, None) is None:
        spark.conf.set(_COLUMNAR_UDFS, "false")
