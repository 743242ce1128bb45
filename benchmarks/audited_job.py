"""An ordinary job, which is measured alone and while it is audited."""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

home = os.environ["AUDITED_HOME"]
spark = SparkSession.builder.getOrCreate()
orders = spark.read.parquet(f"{home}/orders")
shops = spark.read.parquet(f"{home}/shops")
paid = orders.where("state = 'paid'").withColumn("euros", F.col("cents") / 100)
placed = paid.join(shops, "shop")
placed.write.mode("overwrite").parquet(f"{home}/placed")
totals = placed.groupBy("country", "day").agg(F.sum("cents").alias("cents"), F.count("*"))
totals.write.mode("overwrite").parquet(f"{home}/totals")
