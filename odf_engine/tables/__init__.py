"""Tables of other formats over the slices of a dataset: Delta Lake and Apache Iceberg.

A table of all rows has no copy of them: its data files are the slices. A table of the latest state by key
has a copy in one file. Tables are derived from the chain, and can be removed and written again at any time.
"""

from typing import Final, Literal, get_args

TableFormat = Literal["delta", "iceberg"]
TABLE_FORMATS: Final[tuple[TableFormat, ...]] = get_args(TableFormat)
METADATA_FOLDERS: Final[dict[TableFormat, str]] = {"delta": "_delta_log", "iceberg": "iceberg/metadata"}
"""Folders of the metadata of tables, within the folder of a dataset."""
LATEST_FOLDERS: Final[dict[TableFormat, str]] = {"delta": "delta-latest", "iceberg": "iceberg-latest"}
"""Folders of the tables of the latest state, within the folder of a dataset."""
