"""Find out why a GPU waits."""
