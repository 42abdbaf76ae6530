"""GTFS feeds: the tables of a timetable, with the keys and types of the GTFS reference."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from odf_engine.ingest.inference.declared_table import DeclaredColumn

ORIGIN: Final = "the GTFS reference"
_MARKS: Final = frozenset({"agency.txt", "stops.txt", "routes.txt"})
KEYS: Final = {
    "agency": ("agency_id",),
    "stops": ("stop_id",),
    "routes": ("route_id",),
    "trips": ("trip_id",),
    "stop_times": ("trip_id", "stop_sequence"),
    "calendar": ("service_id",),
    "calendar_dates": ("service_id", "date"),
    "fare_attributes": ("fare_id",),
    "shapes": ("shape_id", "shape_pt_sequence"),
    "frequencies": ("trip_id", "start_time"),
    "transfers": (
        "from_stop_id", "to_stop_id", "from_trip_id", "to_trip_id", "from_route_id", "to_route_id",
    ),
    "pathways": ("pathway_id",),
    "levels": ("level_id",),
    "translations": ("table_name", "field_name", "language", "record_id", "record_sub_id", "field_value"),
    "feed_info": ("feed_publisher_name",),
    "attributions": ("attribution_id",),
    "areas": ("area_id",),
    "stop_areas": ("area_id", "stop_id"),
    "networks": ("network_id",),
    "route_networks": ("route_id",),
    "fare_media": ("fare_media_id",),
    "fare_products": ("fare_product_id", "rider_category_id", "fare_media_id"),
    "rider_categories": ("rider_category_id",),
    "location_groups": ("location_group_id",),
    "location_group_stops": ("location_group_id", "stop_id"),
    "booking_rules": ("booking_rule_id",),
}  # fmt: skip
"""Primary keys by table."""
_DATE: Final = re.compile(r"date|.*_date")
_DOUBLE: Final = re.compile(
    r".*_(lat|lon)|shape_dist_traveled|level_index|length|max_slope|min_width|price|amount"
)
_INTEGER: Final = re.compile(
    r"(mon|tues|wednes|thurs|fri|satur|sun)day|direction_id|timepoint|exact_times|is_.*|transfers|payment_method|"
    r"pathway_mode|rule_priority|"
    r".*_(type|sequence|boarding|accessible|allowed|secs|time|order|count|duration|pickup|drop_off)"
)
_TEXT: Final = re.compile(r".*(arrival|departure|start|end|last)_time|currency_type")
"""Times may be later than 24:00:00, so they are texts."""


def find_feed(names: Collection[str]) -> str | None:
    """Return the folder of a feed in an archive, "" for its root, or None if it has no feed."""
    folders = {name.rpartition("/")[0] for name in names if name.rpartition("/")[2] in _MARKS}
    for folder in sorted(folders, key=len):
        prefix = f"{folder}/" if folder else ""
        if sum(1 for mark in _MARKS if prefix + mark in names) > 1:
            return folder
    return None


def declare_columns(header: Sequence[str]) -> tuple[DeclaredColumn, ...]:
    """Return the columns of a table for the names in its header."""
    return tuple(_declare(name.strip()) for name in header)


def _declare(name: str) -> DeclaredColumn:
    key = name.lower()
    if _DATE.fullmatch(key):
        return DeclaredColumn(name, (), "DATE", "yyyyMMdd")
    if _DOUBLE.fullmatch(key):
        return DeclaredColumn(name, (), "DOUBLE")
    is_integer = _INTEGER.fullmatch(key) and not _TEXT.fullmatch(key)
    return DeclaredColumn(name, (), "BIGINT" if is_integer else "STRING")
