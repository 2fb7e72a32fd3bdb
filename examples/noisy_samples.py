"""Follow wrong labels through FedBSS: do they end up on the side that clients train on last?

Run it with `python examples/noisy_samples.py`.
"""

from __future__ import annotations

import fedstrata

if __name__ == "__main__":
    run = fedstrata.train(
        method="fedbss",
        overrides={
            "data.noise": {"labels": 0.3},
            "data.partition.alpha": 0.5,
            "method.sampler.follow": True,  # write down which samples are biased
            "method.sampler.warmup": 4,
            "train.rounds": 20,
            "train.epochs": 5,
        },
    )
    followed = fedstrata.follow(run)

    print("round   ranked   biased   wrong among the biased   wrong among all")
    for sides in followed.rounds:
        print(f"{sides.round:5} {sides.ranked:8} {sides.biased:8} {sides.share:24.2f} {sides.chance:17.2f}")

    often = followed.ranked >= 4
    fate = followed.biased[often] / followed.ranked[often]
    wrong = followed.wrong[often]
    print(f"a sample with a wrong label was biased in {fate[wrong].mean():.0%} of its rounds,", end=" ")
    print(f"one with a right label in {fate[~wrong].mean():.0%}")
    cuts = [update.cut for update in fedstrata.client_updates(run) if update.client == 0 and update.cut is not None]
    print("cuts of client 0:", ", ".join(f"{cut:.2f}" for cut in cuts))
    print(f"accuracy {run.summary['accuracy']:.4f}: {run.path}")
