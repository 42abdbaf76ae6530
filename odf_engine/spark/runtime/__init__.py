"""The life of Spark's JVM: finding Java, launching, configuration, class-data archives."""
