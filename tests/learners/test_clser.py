"""CLS-ER against a reference implementation of the paper's Algorithms 1 and 2."""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from perdure.learners import CLSER, MeanER
from perdure.memory import EpisodicMemory
from perdure.randomness import generator
from perdure.records import Samples
from perdure.state import as_bytes
from perdure.training import fit

CLASSES = 4
SHAPE = (2, 4, 4)
SETTINGS: dict[str, Any] = {
    "lr": 0.1,
    "consistency_weight": 0.3,
    "stable_window": None,
    "plastic_window": None,
    "stable_decay": 0.95,
    "stable_rate": 0.4,
    "plastic_decay": 0.9,
    "plastic_rate": 0.7,
    "buffer_size": 40,
    "memory_batch": 7,
    "seed": 5,
}

Augment = Callable[[Tensor, torch.Generator], Tensor]


class Reference:
    """Processes one sample at a time, in the order of the paper and its published protocol.

    `wrong` names a rule to violate, to test that the comparison detects it.
    """

    def __init__(
        self, network: nn.Module, augment: Augment | None = None, *, wrong: str = ""
    ) -> None:
        self.wrong = wrong
        self.augment = augment
        self.working = network
        self.plastic = copy.deepcopy(network)
        self.stable = copy.deepcopy(network)
        for each in (self.working, self.plastic, self.stable):
            each.train()
        names = ("reservoir", "replay", "augmentation", "plastic update", "stable update")
        self.draws = {name: generator(SETTINGS["seed"], name) for name in names}
        self.memory: list[tuple[Tensor, int]] = []
        self.seen = 0
        self.steps = 0
        self.updates = {"plastic": 0, "stable": 0}
        self.stored_at: list[int] = []
        self.ages: list[int] = []
        """Ages of the samples drawn last: 1 in the step after a sample was stored."""
        self.provided = {"plastic": Counter[int](), "stable": Counter[int]()}
        """How often each memory provided logits, by the age of the sample."""
        self.losses: list[float] = []

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        self.steps += 1
        batch = list(zip(inputs, labels.tolist(), strict=True))
        if self.wrong == "the batch enters memory before replay is drawn":
            for sample, chance in zip(batch, self.chances(len(batch)), strict=True):
                self.present(sample, chance)
        replay = self.draw()
        union = batch + replay
        x = torch.stack([x_i for x_i, _ in union])
        if self.augment is not None:
            x = self.augment(x, self.draws["augmentation"])
        x_m = x[len(batch) :]
        if self.wrong == "replay is augmented anew for the consistency" and replay:
            assert self.augment is not None
            raw = torch.stack([x_i for x_i, _ in replay])
            x_m = self.augment(raw, self.draws["augmentation"])

        consistency = torch.zeros((), dtype=torch.float64)
        if self.wrong == "union before replay":
            logits = self.working(x)
        if replay:
            z = self.select(x_m, [label for _, label in replay])
            if self.wrong == "one forward on the union":
                logits = self.working(x)
                replayed = logits[len(batch) :]
            else:
                replayed = self.working(x_m)
            for i in range(len(replay)):
                for c in range(CLASSES):
                    consistency = consistency + (replayed[i, c] - z[i][c]) ** 2
            consistency = consistency / (len(replay) * CLASSES)
            if self.wrong == "consistency is a sum over outputs":
                consistency = consistency * CLASSES
        if self.wrong not in ("union before replay", "one forward on the union") or not replay:
            logits = self.working(x)
        cross_entropies = [
            torch.logsumexp(logits[i], dim=0) - logits[i, label]
            for i, (_, label) in enumerate(union)
        ]
        cross_entropy = sum(cross_entropies, torch.zeros(())) / len(union)
        if self.wrong == "a mean for the stream and one for replay" and replay:
            own, past = cross_entropies[: len(batch)], cross_entropies[len(batch) :]
            cross_entropy = sum(own, torch.zeros(())) / len(own)
            cross_entropy = (cross_entropy + sum(past, torch.zeros(())) / len(past)) / 2
        loss = cross_entropy + SETTINGS["consistency_weight"] * consistency
        self.losses.append(float(loss.detach()))

        if self.wrong == "memories are updated before the step":
            self.consolidate()
        parameters = list(self.working.parameters())
        with torch.no_grad():
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p.sub_(SETTINGS["lr"] * gradient)

        if self.wrong != "the batch enters memory before replay is drawn":
            shown = x if self.wrong == "augmented inputs are stored" else [x_i for x_i, _ in batch]
            for i, chance in enumerate(self.chances(len(batch))):
                self.present((shown[i], batch[i][1]), chance)
        if self.wrong != "memories are updated before the step":
            self.consolidate()

    def select(self, x: Tensor, labels: list[int]) -> list[list[float]]:
        """Lines 4 and 5: per sample, the logits of the memory that is surer of its class."""
        if self.wrong == "memories are in evaluation mode":
            self.plastic.eval()
            self.stable.eval()
        with torch.no_grad():
            z_p, z_s = self.plastic(x).tolist(), self.stable(x).tolist()
        chosen = []
        for plastic, stable, label, age in zip(z_p, z_s, labels, self.ages, strict=True):
            better = log_probability(plastic, label) > log_probability(stable, label)
            if self.wrong == "the less certain memory":
                better = not better
            self.provided["plastic" if better else "stable"][age] += 1
            chosen.append(plastic if better else stable)
        return chosen

    def draw(self) -> list[tuple[Tensor, int]]:
        if not self.memory:
            return []
        order = torch.randperm(len(self.memory), generator=self.draws["replay"]).tolist()
        rows = order[: SETTINGS["memory_batch"]]
        self.ages = [self.steps - self.stored_at[row] for row in rows]
        return [self.memory[row] for row in rows]

    def chances(self, count: int) -> list[float]:
        return torch.rand(count, dtype=torch.float64, generator=self.draws["reservoir"]).tolist()

    def present(self, sample: tuple[Tensor, int], chance: float) -> None:
        """Algorithm 2."""
        n = self.seen
        if n < SETTINGS["buffer_size"]:
            self.memory.append(sample)
            self.stored_at.append(self.steps)
        else:
            last = n - 1 if self.wrong == "the reservoir draws from [0, N)" else n
            v = math.floor(chance * (last + 1))  # an integer from 0 to N
            if v < SETTINGS["buffer_size"]:
                self.memory[v] = sample
                self.stored_at[v] = self.steps
        self.seen += 1

    def consolidate(self) -> None:
        """Lines 8 to 10."""
        for name, semantic in (("plastic", self.plastic), ("stable", self.stable)):
            toss = float(torch.rand((), generator=self.draws[f"{name} update"]))
            if toss >= SETTINGS[f"{name}_rate"]:
                continue
            self.updates[name] += 1
            count = self.steps
            if self.wrong == "the warm-up counts updates only":
                count = self.updates[name]
            decay = min(1 - 1 / (count + 1), SETTINGS[f"{name}_decay"])
            if self.wrong == "no warm-up":
                decay = SETTINGS[f"{name}_decay"]
            with torch.no_grad():
                pairs: list[tuple[Tensor, Tensor]] = []
                pairs += zip(semantic.parameters(), self.working.parameters(), strict=True)
                if self.wrong == "running statistics are averaged":
                    pairs += zip(semantic.buffers(), self.working.buffers(), strict=True)
                for own, other in pairs:
                    own.copy_(decay * own + (1 - decay) * other)


def log_probability(logits: list[float], label: int) -> float:
    highest = max(logits)
    total = sum(math.exp(value - highest) for value in logits)
    return logits[label] - highest - math.log(total)


class Own(nn.Module):
    """A module of an unknown class."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def plain() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(32, 9), nn.ReLU(), nn.Linear(9, CLASSES)]


def batchnorm() -> list[nn.Module]:
    first = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
    second = nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.BatchNorm2d(5), nn.ReLU()
    return [*first, *second, nn.Flatten(), nn.Linear(20, CLASSES)]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(*plain()),
    "own": lambda: Own(*plain()),
    "batchnorm": lambda: nn.Sequential(*batchnorm()),
}


def network(kind: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return NETWORKS[kind]().double()


def noise(inputs: Tensor, draws: torch.Generator) -> Tensor:
    return inputs + 0.3 * torch.randn(inputs.shape, dtype=inputs.dtype, generator=draws)


def stream(steps: int) -> list[Samples]:
    """Changing classes, overlapping samples, some wrong labels and a few short batches."""
    draws = torch.Generator().manual_seed(2)
    centres = 0.4 * torch.randn(CLASSES, *SHAPE, dtype=torch.float64, generator=draws)
    batches = []
    for step in range(steps):
        size = 3 if step % 11 == 10 else 5
        low = step // 40 % 2 * 2
        labels = low + torch.randint(2, (size,), generator=draws)
        inputs = torch.randn(size, *SHAPE, dtype=torch.float64, generator=draws) + centres[labels]
        labels[0] = int(torch.randint(CLASSES, (), generator=draws))
        batches.append(Samples(inputs, labels))
    return batches


def compare(learner: CLSER, reference: Reference) -> tuple[bool, float]:
    """Return whether the memories are equal, and the largest difference of the networks."""
    contents = learner.memory.contents()
    assert contents is not None
    inputs = torch.stack([x_i for x_i, _ in reference.memory])
    labels = torch.tensor([label for _, label in reference.memory])
    same = contents.inputs.equal(inputs) and contents.labels.equal(labels)
    networks = (
        (learner.network, reference.working),
        (learner.plastic.network, reference.plastic),
        (learner.stable.network, reference.stable),
    )
    difference = 0.0
    for one, other in networks:
        for mine, theirs in zip(
            one.state_dict().values(), other.state_dict().values(), strict=True
        ):
            difference = max(difference, float((mine - theirs).abs().max()))
    return same, difference


@pytest.mark.parametrize(
    ("kind", "augment"), [("plain", noise), ("own", None), ("batchnorm", noise)]
)
@pytest.mark.filterwarnings("ignore:the stable memory")
def test_matches_reference_implementation(kind: str, augment: Augment | None) -> None:
    learner = CLSER(network(kind), augment=augment, **SETTINGS)
    reference = Reference(network(kind), augment)
    for step, (inputs, labels, _) in enumerate(stream(300), 1):
        learner.observe(inputs, labels)
        reference.step(inputs, labels)
        if step in (1, 2, 3, 4, 30, 300):
            same, difference = compare(learner, reference)
            assert same, f"memories differ after step {step}"
            assert difference < 1e-11, f"networks differ by {difference} after step {step}"
    assert int(learner.memory.seen) == reference.seen > 1000
    assert int(learner.steps) == 300
    found = learner.totals()
    assert found["loss"] == pytest.approx(sum(reference.losses), rel=1e-10)
    used = {name: ages.total() for name, ages in reference.provided.items()}
    assert (found["plastic_used"], found["stable_used"]) == (used["plastic"], used["stable"])
    # Both memories must have been used for the choice between them to be tested.
    assert 0.1 < used["plastic"] / (used["plastic"] + used["stable"]) < 0.95


def test_histogram_counts_by_age_which_memory_provided_logits() -> None:
    learner, reference = CLSER(network("plain"), **SETTINGS), Reference(network("plain"))
    assert learner.histograms()["ages"] == {"edges": [1], "stable": [], "total": []}
    for inputs, labels, _ in stream(100):
        learner.observe(inputs, labels)
        reference.step(inputs, labels)
    found = learner.histograms()["ages"]
    ages = [*reference.provided["stable"].elements(), *reference.provided["plastic"].elements()]
    assert 50 < max(ages) < 128
    assert found["edges"] == [1, 2, 4, 8, 16, 32, 64, 128]
    for k, (lower, upper) in enumerate(pairwise(found["edges"])):
        within = range(lower, upper)
        assert found["total"][k] == sum(age in within for age in ages) > 0
        assert found["stable"][k] == sum(reference.provided["stable"][age] for age in within)


EVERYWHERE = (
    "no warm-up",
    "the warm-up counts updates only",
    "the batch enters memory before replay is drawn",
    "memories are updated before the step",
    "consistency is a sum over outputs",
    "a mean for the stream and one for replay",
    "the less certain memory",
    "the reservoir draws from [0, N)",
    "replay is augmented anew for the consistency",
    "augmented inputs are stored",
)
WITH_BATCHNORM = (
    "one forward on the union",
    "union before replay",
    "running statistics are averaged",
    "memories are in evaluation mode",
)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("plain", wrong) for wrong in EVERYWHERE] + [("batchnorm", wrong) for wrong in WITH_BATCHNORM],
)
def test_comparison_detects_a_wrong_rule(kind: str, wrong: str) -> None:
    learner = CLSER(network(kind), augment=noise, **SETTINGS)
    reference = Reference(network(kind), noise, wrong=wrong)
    for inputs, labels, _ in stream(60):
        learner.observe(inputs, labels)
        reference.step(inputs, labels)
    _, difference = compare(learner, reference)
    assert difference > 1e-3


@pytest.mark.parametrize(
    ("kind", "sizes"), [("plain", [12]), ("own", [7, 12]), ("batchnorm", [7, 12])]
)
def test_replay_is_processed_separately_and_first_if_samples_may_interact(
    kind: str, sizes: list[int]
) -> None:
    learner = CLSER(network(kind), **SETTINGS)
    *filling, last = stream(4)
    for inputs, labels, _ in filling:
        learner.observe(inputs, labels)
    seen: list[int] = []
    learner.network.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    learner.observe(last.inputs, last.labels)
    assert seen == sizes


def constant(network: nn.Module, bias: list[float]) -> None:
    assert isinstance(network, nn.Linear)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor(bias))


def chosen(plastic: list[float], stable: list[float], label: int) -> list[float]:
    """Return the replay logits when the memories have constant outputs."""
    learner = CLSER(nn.Linear(3, len(plastic)), buffer_size=4)
    constant(learner.plastic.network, plastic)
    constant(learner.stable.network, stable)
    logits, source = learner.replay_logits(torch.rand(1, 3), torch.tensor([label]))
    assert source is not None
    assert logits[0].tolist() == (plastic if source else stable)
    return logits[0].tolist()


def test_memory_with_higher_probability_of_the_class_provides_the_logits() -> None:
    assert chosen([3.0, 0.0], [2.0, 0.0], label=0) == [3.0, 0.0]
    assert chosen([3.0, 0.0], [2.0, 0.0], label=1) == [2.0, 0.0]
    # Higher logits do not imply a higher probability.
    assert chosen([9.0, 9.0], [1.0, 0.0], label=0) == [1.0, 0.0]


def test_ties_go_to_the_stable_memory() -> None:
    assert chosen([8.0, 8.0], [0.0, 0.0], label=0) == [0.0, 0.0]
    assert chosen([0.0, 0.0], [8.0, 8.0], label=1) == [8.0, 8.0]


@pytest.mark.parametrize(("plastic", "stable"), [([30.0, 0.0], [20.0, 0.0]), ([99, 1], [40, 1])])
def test_choice_does_not_saturate(plastic: list[float], stable: list[float]) -> None:
    # Both probabilities are 1 in float32, but the plastic memory has the larger margin.
    assert chosen(plastic, stable, label=0) == plastic
    assert chosen(stable, plastic, label=0) == plastic


def test_stable_memory_predicts() -> None:
    learner = CLSER(nn.Linear(3, 2), buffer_size=4)
    constant(learner.stable.network, [0.0, 2.0])
    constant(learner.plastic.network, [2.0, 0.0])
    constant(learner.network, [2.0, 0.0])
    assert list(learner.predictors()) == ["stable", "plastic", "working"]
    assert learner.predict(torch.rand(2, 3)).tolist() == [1, 1]
    found = {name: p(torch.rand(1, 3)).argmax() for name, p in learner.predictors().items()}
    assert found == {"stable": 1, "plastic": 0, "working": 0}


def test_memory_is_created_once(monkeypatch: pytest.MonkeyPatch) -> None:
    created = []
    create = EpisodicMemory.__init__

    def count(memory: EpisodicMemory, *args: Any, **rest: Any) -> None:
        created.append(type(memory).__name__)
        create(memory, *args, **rest)

    monkeypatch.setattr(EpisodicMemory, "__init__", count)
    CLSER(nn.Linear(3, 2), buffer_size=4)
    assert created == ["AgeTrackingReservoir"]


def test_replay_logits_record_no_diagnostics() -> None:
    learner = CLSER(network("plain"), **SETTINGS)
    for inputs, labels, _ in stream(5):
        learner.observe(inputs, labels)
    before = learner.totals(), learner.histograms()
    learner.replay_logits(*stream(1)[0][:2])
    assert (learner.totals(), learner.histograms()) == before


def test_memories_start_as_copies_of_the_network() -> None:
    working = network("batchnorm")
    learner = CLSER(working, **SETTINGS)
    assert learner.network is working
    for semantic in (learner.plastic.network, learner.stable.network):
        assert semantic is not working
        assert semantic.training
        for own, other in zip(semantic.parameters(), working.parameters(), strict=True):
            assert own.equal(other)
            assert own.data_ptr() != other.data_ptr()
            assert not own.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stable_decay": 1.0}, "stable decay is 1.0"),
        ({"plastic_decay": -0.1}, "plastic decay is -0.1"),
        ({"stable_window": 3.0}, "stable window is 3.0"),
        ({"plastic_window": 0}, "plastic window is 0"),
        ({"stable_rate": 0.0}, "stable rate is 0.0"),
        ({"plastic_rate": 1.1}, "plastic rate is 1.1"),
        ({"plastic_rate": math.nan}, "plastic rate is nan"),
        ({"stable_decay": math.nan}, "stable decay is nan"),
        ({"consistency_weight": -1}, "consistency_weight is -1"),
        ({"consistency_weight": math.inf}, "consistency_weight is inf"),
        ({"consistency_weight": math.nan}, "consistency_weight is nan"),
        ({"memory_batch": 0}, "memory_batch is 0"),
        ({"buffer_size": 0}, "buffer_size is 0"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CLSER(nn.Linear(3, 2), **{"buffer_size": 4, **arguments})  # type: ignore[arg-type]


# -- small batches ----------------------------------------------------------------------------


def stable_weights(batches: list[int], **given: Any) -> list[float]:
    """Weight of the working network in each update of the stable memory."""
    torch.manual_seed(0)
    network = nn.Linear(2, 2).double()
    learner = CLSER(network, buffer_size=10, lr=1e-3, **given)
    average = next(learner.stable.network.parameters())
    found = []
    for size in batches:
        before = average.clone()
        learner.observe(torch.rand(size, 2, dtype=torch.float64), torch.arange(size) % 2)
        moved = average - before
        distance = network.weight.detach() - before
        found.append(float((moved * distance).sum() / (distance * distance).sum()))
    return found


def test_windows_count_fewer_updates_with_small_batches_until_the_stream_is_long() -> None:
    weights = stable_weights([4] * 450)
    for n, weight in enumerate(weights, 1):
        full = 4 * n / 16
        past = min(n - 1, full * max(1, full / 100))
        assert weight == pytest.approx(1 / (1 + 0.05 * past), rel=1e-4)


@pytest.mark.parametrize(("batch", "memory_batch"), [(2, 16), (3, 16), (4, 16), (8, 16), (2, 4)])
def test_windows_depend_on_new_samples_per_replayed_one(batch: int, memory_batch: int) -> None:
    weights = stable_weights([batch] * 4, memory_batch=memory_batch)
    assert weights[3] == pytest.approx(1 / (1 + 0.05 * min(3, 8 * batch / memory_batch)))


def test_windows_of_large_batches_do_not_depend_on_their_size() -> None:
    sizes = [16] * 20 + [32, 20, 3] * 20  # the last batch of a task may be small
    assert stable_weights(sizes) == stable_weights(sizes, window_ratio=None)


@pytest.mark.parametrize("window_ratio", [0, -1.0, math.nan, math.inf, "a"])
def test_invalid_window_ratio_is_rejected(window_ratio: Any) -> None:
    with pytest.raises(ValueError, match="window_ratio is"):
        CLSER(nn.Linear(2, 2), buffer_size=10, window_ratio=window_ratio)


# -- warning about a memory that lags ---------------------------------------------------------


def learnable(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of four well separated classes."""
    draws = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(4, 8, generator=draws)
    labels = torch.randint(4, (steps, 16), generator=draws)
    return [(centres[y] + 0.1 * torch.randn(16, 8, generator=draws), y) for y in labels]


@pytest.mark.parametrize("buffer_size", [100, 100_000])
def test_memory_that_lags_behind_is_reported_once(buffer_size: int) -> None:
    learner = CLSER(
        nn.Linear(8, 4),
        buffer_size=buffer_size,
        stable_window=None,
        stable_rate=0.02,
        stable_decay=0.999,
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for inputs, labels in learnable(300):
            learner.observe(inputs, labels)
    assert ["stable_window" in str(warning.message) for warning in found] == [True]


def test_a_warning_that_is_an_error_undoes_the_step() -> None:
    learner = CLSER(nn.Linear(8, 4), buffer_size=100, stable_window=None, stable_rate=0.02)
    batches = learnable(64)
    for inputs, labels in batches[:-1]:
        learner.observe(inputs, labels)
    before = as_bytes(learner.state_dict(), {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="stable_window"):
            learner.observe(*batches[-1])
    assert as_bytes(learner.state_dict(), {}) == before


def test_lag_on_the_newest_stored_samples_counts() -> None:
    learner = CLSER(nn.Linear(8, 4), buffer_size=100_000)
    learner.check_progress()  # nothing is stored
    for inputs, labels in learnable(20) + [(x, y * 0 + 3) for x, y in learnable(60)]:
        learner.observe(inputs, labels)
    constant(learner.stable.network, [1.0, 0.0, 0.0, 0.0])  # knows none of the newest samples
    learner.check_progress()
    learner.check_progress()
    with pytest.warns(UserWarning, match="stable_window"):
        learner.check_progress()
    for bias in ([1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]):  # keeps up, then lags again
        constant(learner.network, bias)
        for _ in range(4):  # a second warning would be an error
            learner.check_progress()


def test_a_class_that_only_the_working_network_recognises_is_named_when_predicting() -> None:
    learner = CLSER(nn.Linear(8, 4), buffer_size=100)
    (inputs, _), *_ = batches = learnable(40)
    for x, y in batches:
        learner.observe(x, y)
    learner.predict(inputs)  # a warning would be an error
    constant(learner.stable.network, [1.0, 0.0, 0.0, 0.0])
    learner.predict(inputs)  # too few batches since the last check
    learner._checked = 12
    trained = copy.deepcopy(learner.network.state_dict())
    constant(learner.network, [0.0, 0.0, 1.0, 0.0])
    learner.predict(inputs)  # both know one class of four
    learner.network.load_state_dict(trained)
    learner._checked = 12
    before = as_bytes(learner.state_dict(), {})
    with pytest.warns(UserWarning, match=r"class 1\D.*stable_window to 0\.01") as found:
        learner.predict(inputs)
    assert found[0].filename == __file__
    assert as_bytes(learner.state_dict(), {}) == before
    learner._checked = 12
    learner.predict(inputs)


def test_a_short_stream_that_ends_with_a_new_class_produces_a_warning() -> None:
    digits = load_digits()
    inputs = torch.tensor(digits.data - digits.data.mean(0), dtype=torch.float32) / 6
    labels = torch.tensor(digits.target)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    learner = CLSER(network, buffer_size=200)
    for rows in torch.split(labels.argsort(stable=True), 16):
        learner.observe(inputs[rows], labels[rows])
    with pytest.warns(UserWarning, match="of class 9,"):
        learner.predict(inputs)


def test_memory_that_keeps_up_is_not_reported() -> None:
    learner = CLSER(nn.Linear(8, 4), buffer_size=100)
    for number, (inputs, labels) in enumerate(learnable(300)):  # a warning would be an error
        learner.observe(inputs, labels)
        if number % 20 == 0:
            learner.predict(inputs)


def test_fit_reports_a_memory_that_lags_behind() -> None:
    learner = MeanER(nn.Linear(8, 4), buffer_size=100, window=None, rate=0.01)
    with pytest.warns(UserWarning, match="set window"):
        fit(learner, learnable(800))
