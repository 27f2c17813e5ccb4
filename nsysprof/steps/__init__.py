"""Find slow steps: the distribution of a repeated range, and where slow steps spend their time."""
