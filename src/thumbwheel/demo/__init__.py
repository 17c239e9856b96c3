"""The embedded world: a mail filer, a person with private habits, and one turn of the wheel on what
they leave behind."""
