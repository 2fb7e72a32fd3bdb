"""Studies: questions that are answered by running many experiments. `python -m studies NAME`."""
