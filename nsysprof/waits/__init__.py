"""Why a GPU waits."""
