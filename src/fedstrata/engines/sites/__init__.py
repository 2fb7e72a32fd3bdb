"""Real sites: the same plan over requests and replies, whatever carries them."""
