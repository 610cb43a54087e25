"""Data sets as plain arrays: named ones, and the user's own files."""

from lipdp.data.dataset import Dataset
from lipdp.data.load import NAMES, load
from lipdp.data.ranges import read_ranges, scale
from lipdp.data.text import imdb, made_up_text

__all__ = ["Dataset", "NAMES", "imdb", "load", "made_up_text", "read_ranges", "scale"]
