"""Samples and who holds them: data sets, partitions, devices, drift."""
