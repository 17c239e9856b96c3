"""Bring in an export of Langfuse and see what it could teach.

    python langfuse_import.py traces.json support

Importing the same file again adds nothing, so this may run every night.
"""

from __future__ import annotations

import sys

import thumbwheel


def main(path: str, agent_name: str) -> None:
    """Import the file and print what the feedback permits."""
    with thumbwheel.open() as home:
        agent = home.agent(agent_name)
        report = agent.import_(path, "langfuse")
        print(f"{report.read} rows read, {report.stored} stored, {report.refused} refused")
        plan = agent.plan()
        print(f"labels: {plan.labels}")
        print(plan.why)


if __name__ == "__main__":
    main(*sys.argv[1:])
