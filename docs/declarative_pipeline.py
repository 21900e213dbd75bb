"""The history as a Spark Declarative Pipeline, for those who have such pipelines; `delayq_pipeline` needs none of it.

Spark does not find the format by itself there, so it is registered; REDIS is set by `configuration:` of the pipeline.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from django_delayq.pipeline import register, transforms

spark = SparkSession.active()
register(spark)


@dp.table
def events() -> DataFrame:
    return spark.readStream.format("delayq.events").option("redis", spark.conf.get("delayq.redis")).load()


@dp.materialized_view
def attempts() -> DataFrame:
    return transforms.attempts(spark.read.table("events"), sla={"*": 60.0})


@dp.materialized_view
def hours() -> DataFrame:
    return transforms.hours(spark.read.table("attempts"))
