"""A finished run, loaded to predict and to go on learning from new data.

    perdure run s-mnist --dataset mnist5k --max-steps 600
    python continue_learning.py runs/s-mnist/clser-500-*/seed-0

After 600 steps the run has seen zeros and ones only; here come twos and threes.
"""

import sys

import torch

import perdure
from perdure.data import load


def main(folder: str) -> None:
    learner = perdure.load_run(folder)

    digits = load("mnist5k")
    known, new = digits.test.labels < 2, (digits.test.labels == 2) | (digits.test.labels == 3)

    def show(when: str) -> None:
        right = (learner.predict(digits.test.inputs) == digits.test.labels).double()
        old_share, new_share = float(right[known].mean()), float(right[new].mean())
        print(f"{when}: {old_share:.0%} of zeros and ones, {new_share:.0%} of twos and threes")

    show("as it was")
    arriving = ((digits.train.labels == 2) | (digits.train.labels == 3)).nonzero().squeeze(1)
    for _ in range(5):
        order = arriving[torch.randperm(len(arriving))]
        for rows in torch.split(order, 10):  # memory, counters and random state go on as well
            learner.observe(digits.train.inputs[rows], digits.train.labels[rows])
    show("later on")
    learner.save("learner.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
