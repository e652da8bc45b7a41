"""Load a finished run to predict, and to continue learning from new data.

    perdure run s-mnist --dataset mnist5k --max-steps 600
    python continue_learning.py runs/s-mnist/clser-500-*/seed-0

After 600 steps the run has seen only zeros and ones; this script adds twos and threes.
"""

import sys

import torch

import perdure
from perdure.data import load


def main(folder: str) -> None:
    learner = perdure.load_run(folder)

    digits = load("mnist5k")
    old, new = digits.test.labels < 2, (digits.test.labels == 2) | (digits.test.labels == 3)

    def report(when: str) -> None:
        correct = (learner.predict(digits.test.inputs) == digits.test.labels).double()
        old_accuracy, new_accuracy = float(correct[old].mean()), float(correct[new].mean())
        print(f"{when}: zeros and ones {old_accuracy:.0%}, twos and threes {new_accuracy:.0%}")

    report("before")
    arriving = ((digits.train.labels == 2) | (digits.train.labels == 3)).nonzero().squeeze(1)
    for _ in range(5):
        order = arriving[torch.randperm(len(arriving))]
        for rows in torch.split(order, 10):
            learner.observe(digits.train.inputs[rows], digits.train.labels[rows])
    report("after")
    learner.save("learner.safetensors")  # the networks, the memory and the random state


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python continue_learning.py RUN_FOLDER")
    main(sys.argv[1])
