"""Data sets as plain arrays: named ones, and the user's own files."""

from lipdp._deprecated import renamed_attributes
from lipdp.data.dataset import Dataset as Dataset
from lipdp.data.load import NAMES as NAMES
from lipdp.data.load import load as load
from lipdp.data.ranges import read_ranges as read_ranges
from lipdp.data.ranges import scale as scale
from lipdp.data.text import imdb as imdb
from lipdp.data.text import synthetic_text as synthetic_text

__getattr__ = renamed_attributes(__name__, made_up_text="synthetic_text")
