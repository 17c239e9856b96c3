"""`python -m thumbwheel` and the `thumbwheel` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded is one line, too."""
    try:
        from thumbwheel.cli.main import main as run

        run()
    except KeyboardInterrupt:
        from thumbwheel.core import log

        log.complain("interrupted")
        sys.exit(130)


if __name__ == "__main__":
    main()
