"""Train an embedding of handwritten digits, each turned to an angle of its own.

The images are real: 1,797 digits by 13 people, the test set of UCI's "Optical Recognition of
Handwritten Digits", as scikit-learn ships it. Two images of one digit at different angles share
few pixels, so a search on raw pixels errs; an embedding learns what a digit is at any angle. The
model is trained on the first 1,000 images and judged on the other 797: for each of them, is the
most similar of the other 796 the same digit?

    pip install '.[examples]' && python examples/digits.py

It takes about twenty seconds on two cores.
"""

import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from drometric import Margin, RobustPairLoss, TopK

STEPS = 600
PER_CLASS = 16
TRAINING_IMAGES = 1000


def load() -> tuple[Tensor, Tensor]:
    """Images, (1797, 1, 16, 16) from 0 to 1, and the digits they show."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return functional.interpolate(images, scale_factor=2, mode="bilinear"), torch.tensor(
        digits.target
    )


def turn(images: Tensor) -> Tensor:
    """Every image at a random angle."""
    angle = torch.rand(len(images)) * 2 * math.pi
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    rotation = torch.stack([cos, -sin, zero, sin, cos, zero], dim=1).reshape(-1, 2, 3)
    grid = functional.affine_grid(rotation, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def batch(labels: Tensor) -> Tensor:
    """`PER_CLASS` random examples of each class."""
    return torch.cat(
        [(labels == c).nonzero()[:, 0][torch.randperm(int((labels == c).sum()))[:PER_CLASS]]
         for c in labels.unique()]
    )  # fmt: skip


def recall_at_1(embeddings: Tensor, labels: Tensor) -> float:
    """How often the most similar other example has the same label."""
    unit = functional.normalize(embeddings)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    return float((labels[similarity.argmax(1)] == labels).float().mean())


def main() -> None:
    torch.manual_seed(0)
    images, labels = load()
    unseen, unseen_labels = turn(images[TRAINING_IMAGES:]), labels[TRAINING_IMAGES:]
    images, labels = images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]

    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(128 * 4 * 4, 64),
    )  # fmt: skip
    # 8 pairs an example: about as many as there are positive ones.
    loss = RobustPairLoss(Margin(margin=0.2, threshold=0.5), TopK(per_example=8.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def recall() -> float:
        with torch.inference_mode():
            return recall_at_1(model(unseen), unseen_labels)

    print(f"recall@1 on {len(unseen)} images that are not trained on")
    print(f"  raw pixels        {recall_at_1(unseen.flatten(1), unseen_labels):6.1%}")
    print(f"  before training   {recall():6.1%}")
    for step in range(1, STEPS + 1):
        chosen = batch(labels)
        value = loss(model(turn(images[chosen])), labels[chosen])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % (STEPS // 3) == 0:
            print(f"  after {step} steps   {recall():6.1%}   (loss {float(value.detach()):.3f})")


if __name__ == "__main__":
    main()
