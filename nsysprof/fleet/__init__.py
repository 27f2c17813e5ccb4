"""Compare many reports, one per rank: work per iteration, stragglers, and who waits for whom."""
