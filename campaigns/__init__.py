"""Campaigns: hostile input, broken storage and kills, tried by the thousand. `python -m campaigns NAME`.

Each writes a table into `campaigns/results/NAME.json`: what was tried, how often it was survived, and what was lost.
`make test-all` runs a small part of each.
"""
