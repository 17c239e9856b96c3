"""The suites that ship; one file each."""
