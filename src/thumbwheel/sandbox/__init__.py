"""Running code that nobody trusts: what a model wrote, judged from outside.

`types` (limits, outcomes), `tree` (the files a candidate sees), `cgroup`, `launch` (the last step
before bubblewrap), `cell` (one sandbox), `pool` (warm cells, the verb `run`), `canaries` (attacks
that must fail before any code runs). `inside/` runs within the sandbox and imports the standard
library only. Nothing here falls back to something weaker: what cannot be safe is refused with the
reason.
"""
