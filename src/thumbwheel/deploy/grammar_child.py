"""Tries out grammars in a process of its own: `python -m thumbwheel.deploy.grammar_child MEMORY`.

A schema of a few hundred bytes can ask for a text that matches many patterns at once, whose
automaton takes gigabytes. So the memory of this process is bounded, and the parent
(grammar_trial.py) stops waiting after its time limit. A request and its answer are lines of JSON.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from thumbwheel.core.child import limit_memory


def main(memory: int) -> None:
    """Answer requests until standard input ends; the first line reports that the library is
    loaded."""
    import llguidance

    # Ctrl-C is for the parent, which may want one more answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tokenizer = llguidance.LLTokenizer("byte")
    limit_memory(memory)
    _write({"ready": True})
    for line in sys.stdin:
        matcher = llguidance.LLMatcher(tokenizer, json.loads(line)["grammar"], log_level=0)
        _write({"problem": matcher.get_error() if matcher.is_error() else ""})


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
