"""Which variables of a client's environment go to the worker along with a request.

The worker's own environment is the one of the shell that happened to start it. What a source may read
(``allowedEnv`` in the configuration) is taken from the process that asks for the pull.
"""

from __future__ import annotations

import os
from pathlib import Path

from odf_engine.errors import OdfError
from odf_engine.workspace.config import load_workspace


def allowed_values(odf: Path, dataset: str, alias: str) -> dict[str, str]:
    """The variables that a dataset may read and that are set here.

    Args:
        odf: the workspace's ``.odf`` folder.
        dataset: its id.
        alias: its name; either of them may stand in the configuration.
    """
    try:
        names = load_workspace(odf).allowed_for(dataset, alias)
    except OdfError:
        return {}  # whoever works with the settings says what is wrong with them
    return {name: os.environ[name] for name in names if name in os.environ}
