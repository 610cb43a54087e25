"""Texts as rows of numbers, by rules that were fixed before any text was read."""

import itertools
import os
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from lipdp import checks

_PADDING, _FIRST = 0, 1
# Of raw bytes: the end of a text, and the number of byte 0.
_END, _BYTES = 1, 2
_WORD = re.compile(r"\w+|[^\w\s]")
_CONTINUED = "##"


class Tokenizer(Protocol):
    """What turns each text into `length` numbers below `vocabulary_size`, of that text alone."""

    length: int
    unit: str

    @property
    def vocabulary_size(self) -> int:
        """Returns how many numbers there are, padding included."""

    def tokens(self, text: str) -> Sequence[int]:
        """Returns the numbers of all of a text."""

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Returns int32 numbers `(N, length)`."""

    def to_dict(self) -> dict[str, Any]:
        """Returns what `from_dict` reads."""


class ByteTokenizer:
    """Runs of bytes of a text, each as a number that a fixed hash gives it; there is no vocabulary to choose.

    At each place of the text, in UTF-8 and lower case, stands the hash of the bytes from there on; 0 is padding.

    Args:
        length: Places that are kept of a text, at least 1; what is behind them is left out.
        run: Bytes of one run, at least 1. Runs of 4 tell words apart, whatever the language.
        numbers: How many numbers there are beside padding, at least 2; runs that share one are one to the model.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> ByteTokenizer(length=6, run=2)(["Good!", "good"]).tolist()
        [[4951, 6495, 16599, 11267, 0, 0], [4951, 6495, 16599, 0, 0, 0]]

    **Guarantee.**
    Conditions: none.
    Bound: each row of the result is a function of its own text alone. It costs no epsilon.
    Not covered: arguments that were chosen by looking at the private texts.
    """

    unit = "bytes"

    def __init__(self, length: int = 512, run: int = 4, numbers: int = 2**15):
        self.length = checks.integer("length", length, minimum=1)
        self.run = checks.integer("run", run, minimum=1)
        self.numbers = checks.integer("numbers", numbers, minimum=2)

    @property
    def vocabulary_size(self) -> int:
        """Returns how many numbers there are, padding included."""
        return 1 + self.numbers

    def tokens(self, text: str) -> list[int]:
        """Returns the numbers of all of a text."""
        content, run = text.lower().encode("utf-8", "replace"), self.run
        starts = range(max(1, len(content) - run + 1))  # a text shorter than a run is one
        return [1 + zlib.crc32(content[start : start + run]) % self.numbers for start in starts]

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Returns int32 numbers `(N, length)`."""
        return _padded([self.tokens(text) for text in texts], self.length)

    def to_dict(self) -> dict[str, Any]:
        """Returns what `from_dict` reads."""
        return {"kind": "bytes", "length": self.length, "run": self.run, "numbers": self.numbers}


class WordTokenizer:
    """Words of a public list by their place in it, from 1; 0 is padding.

    A text is split into runs of letters and digits, and single other signs. A word that is not in the list, in lower
    case neither, is the longest entries that it is made of, from its beginning on, where those behind the first stand
    as "##ing": lists of BERT work, and plain words do. A word that is made of no entries is left out.

    Args:
        vocabulary: Distinct words, in any order; never those that occur in the private texts.
        length: Words or parts of words that are kept of a text, at least 1; what is behind them is left out.

    Raises:
        ValueError: the length is out of range, or the vocabulary is empty or holds an entry twice.

    Example:
        >>> tokenizer = WordTokenizer(["good", "bad", "play", "##ing"], length=5)
        >>> tokenizer(["Good playing!", "a bad film"]).tolist()
        [[1, 3, 4, 0, 0], [2, 0, 0, 0, 0]]

    **Guarantee.**
    Conditions: the vocabulary was made without looking at the private texts.
    Bound: each row of the result is a function of its own text and the vocabulary alone. It costs no epsilon.
    Not covered: a vocabulary of the words that occur in the private texts: it tells them.
    """

    unit = "words"

    def __init__(self, vocabulary: Sequence[str], length: int = 128):
        self.length = checks.integer("length", length, minimum=1)
        self.vocabulary = tuple(vocabulary)
        self._places = {word: _FIRST + i for i, word in enumerate(self.vocabulary)}
        if not self.vocabulary or len(self._places) < len(self.vocabulary) or not all(self.vocabulary):
            raise ValueError(
                "A vocabulary holds distinct words, at least one. Received: "
                f"{len(self.vocabulary)} entries, {len(self._places)} of them distinct, {self.vocabulary.count('')} "
                "empty."
            )

    @classmethod
    def from_file(cls, path: str | os.PathLike, length: int = 128) -> "WordTokenizer":
        """Returns the tokenizer of a file with one entry in each line, as BERT's `vocab.txt`.

        Args:
            path: of the file, in UTF-8. Empty lines and repeated entries are left out.
            length: see `WordTokenizer`.

        Raises:
            ValueError: the file holds no entry, or is no text.
            FileNotFoundError: when there is no such file.
        """
        file = pathlib.Path(path)
        if not file.is_file():
            raise FileNotFoundError(f"There is no such vocabulary. Received: {str(path)!r}. Pass a file of words.")
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a text file in UTF-8: {error}. Save it as such.") from error
        words = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
        if not words:
            raise ValueError(f"{path} holds no word. Write one in each line.")
        return cls(words, length)

    @property
    def vocabulary_size(self) -> int:
        """Returns how many numbers there are, padding included."""
        return _FIRST + len(self.vocabulary)

    def tokens(self, text: str) -> list[int]:
        """Returns the numbers of all of a text."""
        return [place for word in _WORD.findall(text) for place in self._word(word)]

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Returns int32 numbers `(N, length)`."""
        return _padded([self.tokens(text) for text in texts], self.length)

    def to_dict(self) -> dict[str, Any]:
        """Returns what `from_dict` reads."""
        return {"kind": "words", "length": self.length, "vocabulary": list(self.vocabulary)}

    def _word(self, word: str) -> list[int]:
        return self._pieces(word) or self._pieces(word.lower())

    def _pieces(self, word: str) -> list[int]:
        """Returns the longest entries that a word is made of; none when it is not."""
        pieces, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1)
            begun = _CONTINUED if start else ""
            end = next((end for end in ends if begun + word[start:end] in self._places), None)
            if end is None:
                return []
            pieces.append(self._places[begun + word[start:end]])
            start = end
        return pieces


class HashedWordTokenizer:
    """Words of a text, each as a number that a fixed hash gives it; there is no vocabulary to choose.

    A text is split into runs of letters and digits, and single other signs, in lower case; 0 is padding.

    Args:
        length: Words that are kept of a text, at least 1; what is behind them is left out.
        numbers: How many numbers there are beside padding, at least 2; words that share one are one to the model.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> HashedWordTokenizer(length=4)(["Good film!", "good"]).tolist()
        [[3731, 3619, 4052, 0], [3731, 0, 0, 0]]

    **Guarantee.**
    Conditions: none.
    Bound: each row of the result is a function of its own text alone. It costs no epsilon.
    Not covered: arguments that were chosen by looking at the private texts.
    """

    unit = "words"

    def __init__(self, length: int = 128, numbers: int = 2**12):
        self.length = checks.integer("length", length, minimum=1)
        self.numbers = checks.integer("numbers", numbers, minimum=2)

    @property
    def vocabulary_size(self) -> int:
        """Returns how many numbers there are, padding included."""
        return 1 + self.numbers

    def tokens(self, text: str) -> list[int]:
        """Returns the numbers of all of a text."""
        words = _WORD.findall(text.lower())
        return [1 + zlib.crc32(word.encode("utf-8", "replace")) % self.numbers for word in words]

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Returns int32 numbers `(N, length)`."""
        return _padded([self.tokens(text) for text in texts], self.length)

    def to_dict(self) -> dict[str, Any]:
        """Returns what `from_dict` reads."""
        return {"kind": "hashed words", "length": self.length, "numbers": self.numbers}


class RawByteTokenizer:
    """The bytes of a text in UTF-8, as they are, and its end: what a language model reads and writes.

    0 is padding, 1 is the end of a text, and 2 to 257 are the bytes 0 to 255.

    Args:
        length: Bytes that are kept of a text, its end included, at least 2; what is behind them is left out.

    Raises:
        ValueError: the length is out of range.

    Example:
        >>> tokenizer = RawByteTokenizer(length=5)
        >>> tokenizer(["Good!!", "hi"]).tolist()
        [[73, 113, 113, 102, 35], [106, 107, 1, 0, 0]]
        >>> tokenizer.text([106, 107, 1, 0, 0])
        'hi'

    **Guarantee.**
    Conditions: none.
    Bound: each row of the result is a function of its own text alone. It costs no epsilon.
    Not covered: a length that was chosen by looking at the private texts.
    """

    unit = "bytes"
    vocabulary_size = _BYTES + 256
    end = _END

    def __init__(self, length: int = 128):
        self.length = checks.integer("length", length, minimum=2)

    def tokens(self, text: str) -> list[int]:
        """Returns the numbers of all of a text, its end included."""
        return [*(_BYTES + byte for byte in text.encode("utf-8", "replace")), _END]

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of numbers, up to its end; bytes that are no UTF-8 become the replacement character."""
        kept = itertools.takewhile(lambda token: token != _END, tokens)
        return bytes(int(token) - _BYTES for token in kept if token >= _BYTES).decode("utf-8", "replace")

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Returns int32 numbers `(N, length)`."""
        return _padded([self.tokens(text) for text in texts], self.length)

    def to_dict(self) -> dict[str, Any]:
        """Returns what `from_dict` reads."""
        return {"kind": "raw bytes", "length": self.length}


_KINDS: dict[str, Callable[..., Tokenizer]] = {
    "bytes": ByteTokenizer,
    "words": WordTokenizer,
    "hashed words": HashedWordTokenizer,
    "raw bytes": RawByteTokenizer,
}


def from_dict(described: Any) -> Tokenizer:
    """Returns the tokenizer that `to_dict` describes; ValueError when it describes none."""
    try:
        settings = dict(described)
        return _KINDS[settings.pop("kind")](**settings)
    except (TypeError, KeyError, ValueError) as error:
        kinds = ", ".join(_KINDS)
        raise ValueError(f"A tokenizer has a kind ({kinds}) and a length. Received: {described!r}.") from error


def _padded(rows: list[list[int]], length: int) -> np.ndarray:
    x = np.full((len(rows), length), _PADDING, "int32")
    for row, tokens in zip(x, rows, strict=True):
        kept = tokens[:length]
        row[: len(kept)] = kept
    return x
