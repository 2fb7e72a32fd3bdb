"""The server of real sites: a run is put together, and the loop asks sites as it asks clients elsewhere.

Before the first round
    `session` puts a run together: `conditions`, `few_sites`, `proposal`, `coming_sites`, `first_questions`. What is
    agreed on with sites: `setup`, `labels_asked`, `enclave`, `features`. What the server knows of their data after
    that: `federation`, as far as they have the `same_features`.
In a run
    `engine`, `evaluator` and `clock`; `checks` of what sites report, `masked_all_reduce`, `kept_sums`, `chain`.
    Who is there: `site_registry`, `joining_sites`, `away_once`, `waiting_note`. What operators say: `orders`.
"""
