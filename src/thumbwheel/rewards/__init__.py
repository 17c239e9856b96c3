"""What feedback and checkers say about an answer: resolution of raw feedback (`label`) and reward
functions (`functions/`)."""
