"""What runs inside a sandbox: the parent that forks, the candidate and the judge. Standard library
only; it is copied into the tree."""
