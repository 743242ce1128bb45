"""Files of CSV, JSON or Parquet as a source."""
