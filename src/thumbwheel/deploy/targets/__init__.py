"""The targets that ship; one file each."""
