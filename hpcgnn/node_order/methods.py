"""Names of the orders; no torch is imported for them."""

from __future__ import annotations

ORDERS = ("degree", "rcm", "hubs")
METHODS = ("none", *ORDERS, "auto")
