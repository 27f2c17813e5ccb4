"""Find slow steps: the distribution of a repeated range, and the causes of slow steps."""
