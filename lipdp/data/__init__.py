"""Data sets as plain arrays: named ones, and the user's own files."""

from lipdp._deprecated import renamed_attributes
from lipdp.data.column import Column
from lipdp.data.dataset import Dataset
from lipdp.data.load import NAMES, UnchargedWarning, load
from lipdp.data.ranges import read_ranges, scale
from lipdp.data.table import Table
from lipdp.data.text import imdb, synthetic_text

__all__ = ["Column", "Dataset", "NAMES", "Table", "UnchargedWarning"]
__all__ += ["imdb", "load", "read_ranges", "scale", "synthetic_text"]

__getattr__ = renamed_attributes(__name__, made_up_text="synthetic_text")
