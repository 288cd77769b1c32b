"""Names, merging, hints and formats: what all servers together offer. Pure."""

from sidecar.catalog.catalog import Catalog, Diff, Untold
from sidecar.catalog.names import catalog_name, matches
from sidecar.catalog.pages import BadCursor, Page, Pages
from sidecar.catalog.shelf import Entry, Kind, Shelf
from sidecar.catalog.views import EVERYTHING, View

__all__ = [
    "EVERYTHING",
    "BadCursor",
    "Catalog",
    "Diff",
    "Entry",
    "Kind",
    "Page",
    "Pages",
    "Shelf",
    "Untold",
    "View",
    "catalog_name",
    "matches",
]
