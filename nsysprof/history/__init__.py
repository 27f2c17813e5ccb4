"""Which change made it slower: runs over weeks, the levels of their step times, and what each change consists of."""
