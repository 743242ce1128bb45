"""Records of text as a snapshot has them."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR, QUOTED, RAW, TEXT
from ledger.sources.files import lines
from ledger.sources.files.multiline import TOO_LONG
from ledger.sources.files.text import IS_LONG, READ

_OF_FAILED = {RAW: "binary", ERROR: "string", QUOTED: "string"}


def records_of(form: lines.Format, text: DataFrame) -> DataFrame:
    """Text as records: what its ``TEXT`` is parsed to, or without one what was read of it by
    columns. ``text``: as ``TextReader.frame`` has it; other columns are kept."""
    others = [name for name in text.columns if name not in (TEXT, IS_LONG, READ)]
    names = form.schema.names
    read = (
        [F.col(READ)[str(number)] for number in range(len(names))] if READ in text.columns else []
    )
    if TEXT not in text.columns:
        none = [F.lit(None).cast(kind).alias(name) for name, kind in _OF_FAILED.items()]
        return text.select(*others, *(map(Column.alias, read, names)), *none)
    parsed = lines.parsed(text, form)
    long = F.when(F.col(IS_LONG), TOO_LONG)
    columns = []
    for number, name in enumerate(names):
        value = F.col(lines.quoted(name))
        columns.append(F.coalesce(read[number], value).alias(name) if read else value)
    # Aside: or Spark puts all columns into one method, which is too much for the JVM.
    quoted = F.when(long.isNull() & F.col(ERROR).isNotNull(), lines.aside(F.col(QUOTED)))
    error = F.coalesce(long, ERROR).alias(ERROR)
    return parsed.select(*others, *columns, RAW, error, quoted.alias(QUOTED))
