"""What operators do at a server's machine, with commands of their own beside it: they ask, watch, and say a word.

Runs
    `submit` asks for one, in its turn (`run_queue`); `run_orders` are an operator's words to it.
A look
    `status` and `overview`; the same on the board, `board_console`.
Copies
    `backup`, with each run as it is at that moment (`run_copy`).
"""
