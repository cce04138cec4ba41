"""The embeddings and labels that the losses are measured on."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PER_CLASS = 5

Data = Literal["random", "alike", "trained"]


@dataclass(frozen=True)
class Setting:
    """What all losses have in common."""

    dim: int
    shuffled: bool
    device: str
    threads: int

    def inputs(self, data: Data, batch: int) -> tuple[Tensor, Tensor]:
        """Embeddings that want a gradient, and labels: `PER_CLASS` examples of each class.

        `random` rows have similarities around 0, so that the default margin loss of nearly all
        negative pairs is 0. `alike` ones, as of a network not yet trained, share a common part
        and have similarities around 0.5, so that no pair is easy and neither sign is harder.
        `trained` ones lie around class centres, and those in groups of four: similarities are
        around 0.75 within a class, 0.37 within a group and 0 beyond it, so that few pairs are hard.
        """
        generator = torch.Generator().manual_seed(batch)
        labels = torch.arange(batch) // PER_CLASS
        x = torch.randn(batch, self.dim, generator=generator)
        if data == "alike":
            x += torch.randn(self.dim, generator=generator)
        if data == "trained":
            classes = batch // PER_CLASS
            group = torch.randperm(classes, generator=generator) // 4
            centre = torch.randn(classes, self.dim, generator=generator)
            centre += torch.randn(classes, self.dim, generator=generator)[group]
            # In place: what is made and freed here would blur the measured memory.
            x.mul_((2 / 3) ** 0.5).view(classes, PER_CLASS, self.dim).add_(centre[:, None])
        if self.shuffled:
            order = torch.randperm(batch, generator=generator)
            x, labels = x[order], labels[order]
        return x.to(self.device).requires_grad_(), labels.to(self.device)
