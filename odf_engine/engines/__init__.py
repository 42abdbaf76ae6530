"""Query engines: the engine contract, Spark in this process, engines over gRPC, the sandbox.

Must not import ``derive`` or ``sync``.
"""
