"""Names of Spark's classes, from the jars of the running version."""

import zipfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

_PACKAGE = "org/apache/spark/sql/"
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."


def plan_classes(spark: SparkSession) -> set[str]:
    """Simple names of the concrete logical plans, without commands and unresolved nodes."""
    jvm = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    plan, command = (loader.loadClass(_LOGICAL + name) for name in ("LogicalPlan", "Command"))
    is_abstract = jvm.java.lang.reflect.Modifier.isAbstract
    names = set()
    for name in _class_names():
        try:
            each = loader.loadClass(name)
        except Exception:
            continue
        if not plan.isAssignableFrom(each) or command.isAssignableFrom(each):
            continue
        if not is_abstract(each.getModifiers()):
            names.add(str(each.getSimpleName()))
    return {name for name in names if not name.startswith("Unresolved")}


def _class_names() -> list[str]:
    jars = (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar")
    return [
        name.removesuffix(".class").replace("/", ".")
        for jar in sorted(jars)
        for name in zipfile.ZipFile(jar).namelist()
        if name.startswith(_PACKAGE) and name.endswith(".class") and "$" not in name
    ]
