"""Many reports, a rank each: what they do per iteration, who is slow, and who waits for whom."""
