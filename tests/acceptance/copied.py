"""A pipeline that copies numbers, of whichever ledger its DAG names."""

from ledger import FileSource, ParquetSink, Pipeline

pipeline = Pipeline("copied")
pipeline.source("numbers", FileSource("numbers.csv", schema="n BIGINT"))
pipeline.sink("copies", ParquetSink("copies"), reads="numbers")
