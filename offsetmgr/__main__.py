"""``python -m offsetmgr``."""

from __future__ import annotations

from offsetmgr.cli import main

if __name__ == "__main__":
    main()
