"""Which steps were slow: the distribution of a repeated range, and what slow steps spend their time on."""
