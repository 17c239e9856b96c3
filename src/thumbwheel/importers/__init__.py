"""Reads feedback and traces from the files and servers of other programs, as records.

It knows no database: `capture` stores what is read here.
"""
