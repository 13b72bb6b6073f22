"""Files that belong to no version yet.

Who wrote them, what is in them, and when they may be deleted.
"""
