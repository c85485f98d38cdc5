"""Framecache and PyTorch. Importing this module imports torch; ``import framecache`` does not."""

from __future__ import annotations

import torch

from ._native import Batch, Tensor

__all__ = ["to_torch"]


def to_torch(pixels: Batch | Tensor) -> torch.Tensor:
    """The same memory as a ``torch.Tensor``: uint8, ``[pictures, height, width, 3]`` for a batch, ``[height, width, 3]`` for one.

    Nothing is copied: the tensor keeps the memory alive. For a network that wants channels first, ``t.permute(0, 3, 1, 2)`` is a
    view of it, and PyTorch's ``channels_last`` memory format.
    """
    return torch.from_dlpack(pixels.data if isinstance(pixels, Batch) else pixels)
