"""``python -m nsysprof``."""

from __future__ import annotations

from nsysprof.cli import main

if __name__ == "__main__":
    main()
