"""Fine-tune the last block and the head of a pretrained backbone; the rest stays frozen.

    python pretrained_backbone.py

Zeros to fours stand for the data that the backbone was pretrained on. Fives to nines then arrive
as a stream, one digit after another.
"""

import torch
from torch import Tensor, nn

import perdure
from perdure.data import load


def block(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


class Network(nn.Module):
    """Three blocks that stay as pretrained, a last block that is fine-tuned, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(block(1, 16), block(16, 32), block(32, 32))
        self.last_block = block(32, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes]."""
        features: Tensor = self.last_block(self.backbone(x)).mean(dim=(2, 3))
        return self.head(features)  # type: ignore[no-any-return]


def pretrained(inputs: Tensor, labels: Tensor) -> Network:
    """A network trained on some classes; in practice, load the weights of yours."""
    network = Network(classes=5)
    perdure.fit(
        perdure.SGD(network, lr=0.1),
        perdure.from_tensors(inputs, labels, name="pretraining"),
        batch=32,
        epochs=5,
    )
    return network


def main() -> None:
    torch.manual_seed(0)
    digits = load("mnist5k")
    inputs, labels, _ = digits.train
    old = labels < 5
    network = pretrained(inputs[old], labels[old])

    network.backbone.requires_grad_(False)  # shared by all networks of a learner, never trained
    network.backbone.eval()  # BatchNorm keeps its statistics
    network.head = nn.Linear(32, 5)  # a new head for the new classes

    learner = perdure.CLSER(network, buffer_size=200)
    for digit in range(5, 10):
        rows = (labels == digit).nonzero().squeeze(1)
        for batch in torch.split(rows.repeat(3), 10):
            learner.observe(inputs[batch], labels[batch] - 5)

    new = digits.test.labels >= 5
    correct = learner.predict(digits.test.inputs[new]) + 5 == digits.test.labels[new]
    print(f"accuracy on the five new digits: {float(correct.double().mean()):.0%}")
    frozen = sum(p.numel() for p in network.backbone.parameters())
    own = sum(p.numel() for p in network.parameters()) - frozen
    print(f"parameters: {frozen} shared by three networks, {own} in each")


if __name__ == "__main__":
    main()
