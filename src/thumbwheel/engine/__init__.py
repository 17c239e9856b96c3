"""The token-level engine, neutral to methods: trees, attention, head, scores, reference cache,
prompts, loading."""
