"""The tables of the five papers: experiment files with what the papers print."""
