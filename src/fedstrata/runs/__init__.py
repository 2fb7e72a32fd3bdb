"""Training as a user sees it: sessions, run folders, comparisons, traces, replays."""
