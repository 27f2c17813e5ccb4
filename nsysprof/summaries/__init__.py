"""What a trace holds beside kernels in ranges, added up: host calls, copies, memory, streams."""
