"""The inbox: other processes hand changes over to the log's one writer, and each group of them is
in the log exactly once.
"""
