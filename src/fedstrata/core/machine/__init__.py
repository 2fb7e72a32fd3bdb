"""A machine and its processes: nothing here knows of learning.

`threads`; `child_process`, and `parent_line`, by which a process ends with the one that started it; `quick_imports`;
`platforms`, for what only some offer.
"""
