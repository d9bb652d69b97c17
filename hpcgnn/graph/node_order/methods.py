"""Names of the orders, in a module that imports no torch."""

from __future__ import annotations

ORDERS = ("degree", "rcm", "hubs")
METHODS = ("none", *ORDERS, "auto")
