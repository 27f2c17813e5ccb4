"""Find which change made a program slower: runs over weeks, levels of step times, and the parts of each change."""
