"""Sessions of the test's JVM without the session extension, like a stock session with only the jar and a catalog."""

from __future__ import annotations

from pyspark.sql import SparkSession


def session_without_extension(spark: SparkSession, catalog: str) -> SparkSession:
    """Returns a session with a catalog registered by the program of `spark`."""
    jvm = spark._jvm
    assert jvm is not None
    shared = jvm.scala.Option.apply(spark._jsparkSession.sharedState())
    none, settings = jvm.scala.Option.empty(), jvm.scala.collection.immutable.HashMap()
    extensions = jvm.org.apache.spark.sql.SparkSessionExtensions()
    stock = jvm.org.apache.spark.sql.classic.SparkSession(
        spark._jsc.sc(), shared, none, extensions, settings, settings
    )
    session = SparkSession(spark.sparkContext, stock)
    session.conf.set(f"spark.sql.catalog.{catalog}", "lancespark.LanceCatalog")
    return session
