"""What costs a program time, what to do about it, and what that gains: one answer that all commands show."""
