"""Plant bugs and say which ones the tests catch: `python -m tests.mutations [NAME...]`."""

from __future__ import annotations

import sys

from tests.mutations import mutations, try_out


def main(names: list[str]) -> int:
    """Print a line a mutation; 1 where one survived."""
    survived = 0
    for mutation in mutations(names):
        outcome = try_out(mutation)
        survived += not outcome.caught
        print(f"{'caught' if outcome.caught else 'SURVIVED':<9} {mutation.name}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, RuntimeError) as error:
        sys.exit(str(error))
