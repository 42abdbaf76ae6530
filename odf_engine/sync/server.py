"""``python -m odf_engine.sync.server``: the process of ``odf serve``."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ^C while the rest is loaded just ends it
    from odf_engine.sync.serving_run import main

    sys.exit(main())
