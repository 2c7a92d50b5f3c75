"""What each Spark executor starts, and forks its Python workers from: PySpark's daemon, with loopback servers."""

from pyspark.daemon import manager

from tfperf.parallel.spark.loopback import listen_on_loopback_only

__all__: list[str] = []

if __name__ == "__main__":
    listen_on_loopback_only()
    manager()
