"""The JVM of Spark: the jar of this package, and calls between Java and Python."""
