"""Running code that nobody trusts: what a model wrote, judged from outside.

`types` has limits and results, `root_files` the files that a candidate sees, `cgroup` the limits of
memory and processes, `launch` the last step before bubblewrap, `bubblewrap` one sandbox, `pool`
warm sandboxes, and `canaries` the attacks that must fail before any code runs. `inside/` runs
within the sandbox and imports the standard library only. Nothing here falls back to something
weaker: what cannot be safe is refused with the reason.
"""
