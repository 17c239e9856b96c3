"""Models that tests make: tiny, random or trained in seconds, and their files."""
