"""Compare many reports, one per rank: work per iteration, stragglers, and which rank waits for which."""
