"""Keras callbacks for private training."""

from lipdp.callbacks.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
