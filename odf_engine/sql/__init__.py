"""SQL text without an engine: tokens, error excerpts, table functions and column-level lineage.

Must not import Spark or any package above `metadata`.
"""

import logging

# It warns about syntax that it does not know, on the terminal. The errors of the callers say it.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
