"""Samples and who holds them: data sets, partitions, devices, drift.

A federation
    `federation`, of what `assembly` puts together; `federation_info`, what a run reads of it, and `federation_html`.
    Who holds what: `ownership`, `partitions/`, `validation`, `subset`; what disturbs or moves it: `noise`, `drift`;
    `devices`. How skewed it is: `label_table`, `concentration`.
From raw inputs to samples
    `reading`, `items`, `formats/`, `raw_inputs`, `fitting`; `preprocessing`, `scaling`, `feature_checks`,
    `statistics`, `columns`.
Published data sets
    `sets/`, each `published` somewhere: `sources`, `files`, `unpacking`, `packs`; the data folder: `store`, `catalog`.
"""
