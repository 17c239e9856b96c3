"""Training: a dataset becomes a LoRA adapter, in a child process, by one of the algorithms."""
