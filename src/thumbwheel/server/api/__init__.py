"""The commands over HTTP: one endpoint for each route that the stages' `routes.py` list."""
