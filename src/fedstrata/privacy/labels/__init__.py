"""Labels the server cannot read: clients learn placeholders for their own, the server how often each one is held.

Stratify section IV-A. `masking.py` is the one way in; `prf.py` is the default, `ckks_paper.py` what the paper prints,
`plain.py` no secrecy at all. What remains visible in every mode: which client holds which placeholder, and how many
samples each has in all. And whoever holds the trained model and one public example per class can name every placeholder
by looking at the predictions.
"""
