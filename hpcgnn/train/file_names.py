"""Names of the files in a run folder."""

from __future__ import annotations

CONFIG, METRICS, DECISIONS, LINK_COSTS = "config.toml", "metrics.jsonl", "decisions.jsonl", "link_costs.json"
SUMMARY, RANKS = "summary.json", "ranks.json"
