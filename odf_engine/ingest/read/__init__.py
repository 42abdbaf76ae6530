"""Read phase: files of every supported format as Spark DataFrames, and where their errors are."""
