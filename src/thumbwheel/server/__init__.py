"""The server: the gateway for all agents, and the API of the stages, on one port."""
