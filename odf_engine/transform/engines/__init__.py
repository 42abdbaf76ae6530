"""Query engines: the engine contract, Spark in this process, engines over gRPC, the sandbox."""
