"""Records of text as a snapshot has them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ledger.core.column_names import ERROR, QUOTED, RAW, TEXT
from ledger.sources.files import lines
from ledger.sources.files.multiline import TOO_LONG
from ledger.sources.files.text import IS_LONG, READ


def records_of(form: lines.Format, text: DataFrame) -> DataFrame:
    """Text as records: what its ``TEXT`` is parsed to, or without one what was read of it by
    columns. ``text``: as ``TextReader.frame`` has it; other columns are kept."""
    parsed = lines.parsed(text, form)
    long = F.when(F.col(IS_LONG), TOO_LONG)
    columns = []
    for number, name in enumerate(form.schema.names):
        read = [F.col(READ)[str(number)]] if READ in text.columns else []
        columns.append(F.coalesce(*read, F.col(lines.quoted(name))).alias(name))
    # Aside: or Spark puts all columns into one method, which is too much for the JVM.
    quoted = F.when(long.isNull() & F.col(ERROR).isNotNull(), lines.aside(F.col(QUOTED)))
    others = [name for name in text.columns if name not in (TEXT, IS_LONG, READ)]
    error = F.coalesce(long, ERROR).alias(ERROR)
    return parsed.select(*others, *columns, RAW, error, quoted.alias(QUOTED))
