"""Runs made visible: what they wrote down as arrays, figures of it, and pages that hold the figures."""
