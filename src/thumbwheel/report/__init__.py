"""What can be told of a version: its lineage back to single pieces of feedback, what descends
from a piece of data, and the model change report with its charts.
"""
