"""Arrow's kernels: pyarrow makes these functions when it is imported, and no type checker knows them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow.compute

pc: Final[Any] = pyarrow.compute
