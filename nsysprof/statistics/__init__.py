"""Statistics of samples: quartiles, summaries, intervals, effect sizes and verdicts."""
