"""Bytes and files, whoever reads or writes them: nothing here knows of learning.

Files
    `files` are whole or as they were; a `file_lock` between processes; `archives` from elsewhere.
What stands in them
    `tree` is plain state, and `stored` tensors that lie in files of their own; `toml`; `event_lines` and `json_log`.
"""
