"""The tables of the five papers: played, kept cell by cell, and judged by rules fixed beforehand."""
