"""Lifecycle of Spark's JVM: Java lookup, launch, configuration and class-data archives."""
