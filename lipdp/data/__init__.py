"""Data sets as plain arrays: named ones, and the user's own files."""

from lipdp._deprecated import renamed_attributes
from lipdp.data.column import Column
from lipdp.data.dataset import Dataset
from lipdp.data.load import NAMES, UnchargedWarning, load
from lipdp.data.ranges import read_ranges, scale
from lipdp.data.table import Table
from lipdp.data.text import imdb, synthetic_text
from lipdp.data.text_columns import TextColumns, load_language, load_text
from lipdp.data.tokenizers import ByteTokenizer, HashedWordTokenizer, RawByteTokenizer, WordTokenizer

__all__ = ["Column", "Dataset", "NAMES", "Table", "TextColumns", "UnchargedWarning"]
__all__ += ["ByteTokenizer", "HashedWordTokenizer", "RawByteTokenizer", "WordTokenizer"]
__all__ += ["imdb", "load", "load_language", "load_text", "read_ranges", "scale", "synthetic_text"]

__getattr__ = renamed_attributes(__name__, made_up_text="synthetic_text")
