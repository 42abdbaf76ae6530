"""Read phase: files of all supported formats as Spark DataFrames, and the location of errors in them."""
