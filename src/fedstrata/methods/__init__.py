"""The stages of a round, one method a file, and the recipes that name them."""
