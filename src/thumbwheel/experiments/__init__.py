"""Experiments on live traffic: which version really serves better, decided by the people who are
served. Start reading at `controller`."""
