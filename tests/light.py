"""A run that is over soon, for tests of what happens around training: few steps, and no clients trained at once.

Training clients at once is traced first, which pays in long runs only.
"""

LIGHT = {"train.epochs": 1, "train.batch_size": 64, "engine.vmap": "never"}
