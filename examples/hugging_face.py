"""A Hugging Face classifier that learns two topics, then two others, with CLS-ER.

    python hugging_face.py

Needs transformers and the extra onnx of perdure. Nothing is downloaded: the vocabulary is that of
the texts, and the network starts from random weights. To start from a pretrained model, load both
with `AutoTokenizer.from_pretrained` and `AutoModelForSequenceClassification.from_pretrained`.
"""

import random
import tempfile
from pathlib import Path

import onnxruntime
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import (
    BatchEncoding,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

import perdure

TOPICS = {
    "weather": "rain sun wind cloud snow storm fog thunder",
    "sport": "goal match team player ball coach race medal",
    "food": "bread cheese soup apple salt oven butter rice",
    "travel": "train ticket road car plane bridge harbour map",
}
OTHER = ["the", "a", "is", "was", "with", "and", "on", "for", "today", "very", "near", "old"]
LENGTH = 16
BATCH = 16


def write_texts(topic: int, count: int, draws: random.Random) -> list[str]:
    """Make texts of two words of a topic among other words."""
    own = list(TOPICS.values())[topic].split()
    texts = [draws.choices(own, k=2) + draws.choices(OTHER, k=6) for _ in range(count)]
    return [" ".join(draws.sample(words, len(words))) for words in texts]


def build_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose vocabulary is that of the texts."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(special_tokens=list(special.values()), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def build_learner(config: BertConfig) -> perdure.CLSER:
    """Build CLS-ER around a new network."""
    network = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    return perdure.CLSER(network, buffer_size=200, optimizer=optimizer)


def main() -> None:
    """Train on two topics after two others, then save, load and export."""
    draws = random.Random(0)
    tasks = []
    for topics in ((0, 1), (2, 3)):
        task = [(text, topic) for topic in topics for text in write_texts(topic, 800, draws)]
        tasks.append(draws.sample(task, len(task)))
    tests = [write_texts(topic, 100, draws) for topic in range(len(TOPICS))]
    tokenizer = build_tokenizer([text for task in tasks for text, _ in task])

    def encode(texts: list[str]) -> BatchEncoding:
        # Batches have the same shape: texts are padded to one length.
        return tokenizer(
            texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
        )

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH,
        num_labels=len(TOPICS),
        initializer_range=0.1,  # a network this small needs larger initial weights
    )
    learner = build_learner(config)
    for task in tasks:
        for start in range(0, len(task), BATCH):
            texts, topics = zip(*task[start : start + BATCH], strict=True)
            learner.observe(encode(list(texts)), torch.tensor(topics))

    for topic, name in enumerate(TOPICS):
        share = (learner.predict(encode(tests[topic])) == topic).float().mean()
        print(f"{name}: {share:.0%} correct")

    examples = encode([texts[0] for texts in tests])
    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder) / "learner.safetensors")
        loaded = build_learner(config)
        loaded.load(Path(folder) / "learner.safetensors")
        same = loaded.predict_proba(examples).equal(learner.predict_proba(examples))
        print(f"loaded learner predicts the same: {same}")

        learner.export(Path(folder) / "model.onnx", encode(tests[0][:2]))
        session = onnxruntime.InferenceSession(Path(folder) / "model.onnx")
        logits = session.run(None, {name: part.numpy() for name, part in examples.items()})[0]
        expected = next(iter(learner.predictors().values()))(examples)
        error = (torch.from_numpy(logits) - expected).abs().max()
        print(f"exported model: {[list(TOPICS)[k] for k in logits.argmax(1)]}, error {error:.0e}")


if __name__ == "__main__":
    main()
