"""The same plan at real sites.

Between both sides
    `protocol` and its `protocol_version`, `transport` (over Flower: `flower/`), `introduction`; who takes part with
    which keys: `certificates`, `credentials`, `roll`. What both know of `report_shapes`.
At the server, before the first round
    `session` puts a run together: `conditions`, `few_sites`, `proposal`, `coming_sites`, `first_questions`,
    `labels_asked`, `setup`, `enclave`, `features`, `same_features`; what it then knows of their data, `federation`.
At the server, in a run
    `engine`, `evaluator` and `clock`; `site_registry`, `joining_sites`, `away_once`, `waiting_note`; `checks`,
    `masked_all_reduce`, `kept_sums`, `chain`; what operators say, `orders`.
At a site
    `site_server` answers for a `site_session` with a `running_task`; `chain_site`; what its owner allows, `policy/`.
    What leaves it: `site_privacy`, `site_features`, `counts_asked`, `feature_questions`, `sums_served`, `ledger`;
    to an enclave, `enclave_party`.
    Its process: `site_process`, `site_service`, `site_socket`, `site_state`, `source`, `client_state`.
After a run
    `label_names`.
"""
