"""CLS-ER inside PyTorch Lightning, which provides the loop, logging and checkpoints.

    python lightning_loop.py

Needs `pip install lightning`. The learner takes its own optimizer steps, so the module uses manual
optimization. Checkpoints of Lightning contain the learner's state, its memory included.
"""

import tempfile
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import perdure

PATTERNS = torch.rand(6, 64, generator=torch.Generator().manual_seed(0)) > 0.5


class Continual(L.LightningModule):  # type: ignore[misc]
    """Trains a perdure learner."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))
        self.learner = perdure.CLSER(self.network, buffer_size=60)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Learn from a batch."""
        self.learner.observe(*batch)

    def on_train_epoch_end(self) -> None:
        """Log the mean losses since the last call."""
        self.log_dict(self.learner.metrics())

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Log the accuracy of the default predictor."""
        inputs, labels = batch
        self.log("accuracy", (self.learner.predict(inputs) == labels).float().mean())

    def configure_optimizers(self) -> None:
        """The learner has its own optimizer."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the learner's state."""
        checkpoint["learner"] = self.learner.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the learner's state."""
        self.learner.load_state_dict(checkpoint["learner"])


def loader(classes: tuple[int, ...], size: int, seed: int) -> DataLoader[Any]:
    """Noisy patterns of these classes."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (size,), generator=draws)]
    inputs = PATTERNS[labels] + 0.8 * torch.randn(size, 64, generator=draws)
    return DataLoader(TensorDataset(inputs, labels), batch_size=16)


if __name__ == "__main__":
    torch.manual_seed(0)
    module = Continual()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "accelerator": "cpu",
            "logger": False,
            "default_root_dir": folder,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        for seed, classes in enumerate([(0, 1), (2, 3), (4, 5)]):
            trainer = L.Trainer(max_epochs=1, **options)
            trainer.fit(module, loader(classes, 1600, seed))
        trainer.save_checkpoint(f"{folder}/last.ckpt")
        restored = Continual.load_from_checkpoint(f"{folder}/last.ckpt", weights_only=True)
        (found,) = L.Trainer(**options).test(
            restored, loader((0, 1, 2, 3, 4, 5), 600, 9), verbose=False
        )
    print(f"accuracy on all six patterns: {found['accuracy']:.0%}")
