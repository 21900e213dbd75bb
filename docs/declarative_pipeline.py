"""The history as a Spark Declarative Pipeline, for those who have such pipelines; `delayq_pipeline` needs none of it.

Lies in the folder that `libraries:` of the pipeline's specification names. Where Redis is says its `configuration:`;
docs/pipeline.md shows one. Spark does not find the format by itself there, so it is registered.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from django_delayq.pipeline import register, transforms

spark = SparkSession.active()
register(spark)


@dp.table
def events() -> DataFrame:
    """Append the events that have come since the last run of the pipeline."""
    redis, prefix = spark.conf.get("spark.delayq.redis"), spark.conf.get("spark.delayq.prefix", "delayq")
    return spark.readStream.format("delayq.events").options(redis=redis, prefix=prefix).load()


@dp.materialized_view
def attempts() -> DataFrame:
    """Compute the attempts among them, with `sla_missed`."""
    return transforms.attempts(spark.read.table("events"), sla={"*": 60.0})


@dp.materialized_view
def hours() -> DataFrame:
    """Figures by hour, queue and task."""
    return transforms.hours(spark.read.table("attempts"))
