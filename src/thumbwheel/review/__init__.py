"""People rate: queues of what is to be rated, who rates what, and what they said."""
