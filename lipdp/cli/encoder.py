"""A frozen network of texts in front of the head that trains: a preset of keras_hub with a tokenizer of its own."""

import argparse
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lipdp.cli import backbone, quiet

_LENGTH, _AT_ONCE = 128, 512
_ROWS = 64  # that the network sees at once
_INPUTS = {"token_ids", "padding_mask", "segment_ids"}
# Settings of tokenizers that are sets, whatever their type.
_UNORDERED = ("special_tokens", "unsplittable_tokens")


class PresetTokenizer:
    """Texts as the preprocessor of a preset makes them, each number one more than its own; 0 is padding."""

    unit = "tokens"

    def __init__(self, preprocessor: Any, length: int):
        self.preprocessor, self.length = preprocessor, length

    @property
    def vocabulary_size(self) -> int:
        """Returns how many numbers there are, padding included."""
        return 1 + int(self.preprocessor.tokenizer.vocabulary_size())

    def tokens(self, text: str) -> Sequence[int]:
        """Returns the numbers that are kept of a text."""
        row = self([text])[0]
        return row[row > 0].tolist()

    def __call__(self, texts: Iterable[str]) -> np.ndarray:
        """Returns int32 numbers `(N, length)`."""
        texts = list(texts)
        if not texts:
            return np.zeros((0, self.length), "int32")
        rows = [self._rows(texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)]
        found = np.concatenate(rows)
        for i in {0, len(texts) - 1}:
            if not np.array_equal(self._rows(texts[i : i + 1])[0], found[i]):
                raise ValueError(
                    "The tokens of a text must depend on that text alone. Received: a preset whose preprocessor makes "
                    "others of it beside other texts. Pass another --backbone."
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Returns what says which tokenizer it is; the preset itself is needed to have it again."""
        return {"kind": "preset", "length": self.length}

    def _rows(self, texts: list[str]) -> np.ndarray:
        made = self.preprocessor(texts)
        ids, there = (np.asarray(made[name]) for name in ("token_ids", "padding_mask"))
        return np.where(there.astype(bool), ids + 1, 0).astype("int32")


@dataclasses.dataclass(frozen=True)
class Encoder(backbone.Backbone):
    """A frozen network of texts, and its tokenizer; the SHA-256 is that of all that a row of features hangs on."""

    tokenizer: PresetTokenizer

    def features(self, x: np.ndarray, at_once: int = _ROWS, verbose: int = 0) -> np.ndarray:
        """Returns a row of features for each row of tokens: the mean over the places of the text."""
        import lipdp

        preprocessor, there = self.tokenizer.preprocessor, x > 0
        padding = getattr(preprocessor.tokenizer, "pad_token_id", None) or 0
        rows = {"token_ids": np.where(there, x - 1, padding).astype("int32"), "padding_mask": there.astype("int32")}
        rows["segment_ids"] = np.zeros_like(rows["token_ids"])
        network = _pooled(self.network, self.name)
        size, rows = max(1, min(at_once, _ROWS)), {name: rows[name] for name in self.network.input}
        return lipdp.features(network, rows, batch_size=size, verbose=verbose)


def load(name: str, length: int | None) -> Encoder:
    """Returns the encoder of a preset of keras_hub, by its name or folder.

    Args:
        name: of the preset.
        length: tokens that are kept of a text; None for 128, or what the network can take if that is less.

    Raises:
        ValueError: it is no preset of a network of texts with a preprocessor; keras_hub or the network is not there.
    """
    if name.endswith(".keras"):
        raise ValueError(
            f"The backbone of texts brings its tokenizer. Received: --backbone {name}, a network alone. Pass a preset "
            "of keras_hub, by its name or folder."
        )
    network, hub = backbone.preset(name)
    largest = getattr(network, "max_sequence_length", None)
    if length is None:
        length = min(_LENGTH, largest or _LENGTH)
    if length < 3 or length > (largest or length):
        raise ValueError(
            f"The preset takes from 3 to {largest or 'any number of'} tokens of a text. Received: --length {length}."
        )
    try:
        with quiet.stderr():
            preprocessor = hub.models.TextClassifierPreprocessor.from_preset(name, sequence_length=length)
    except Exception as error:  # of the preset, of its files, of the tokenizer
        raise ValueError(
            f"The preset has no preprocessor of texts: {backbone.first_line(error)}. Received: --backbone {name}. Pass "
            "a preset of an encoder, such as bert_base_en, with its tokenizer."
        ) from error
    return Encoder(name, _digest(network, preprocessor), network, PresetTokenizer(preprocessor, length))


def of_run(options: argparse.Namespace, recorded: dict) -> Encoder | None:
    """Returns the encoder that a run was trained behind, see `backbone.of_run`."""
    found: Any = backbone.of_run(options, recorded, lambda name: load(name, recorded["length"]))
    return found


def _digest(network: Any, preprocessor: Any) -> str:
    """Returns the SHA-256 of all that the features of a text hang on, less the length, which a run records."""
    tokenizer = preprocessor.tokenizer
    apart = ("sequence_length", "tokenizer")
    settings = {name: value for name, value in preprocessor.get_config().items() if name not in apart}
    content = {
        "weights": backbone.digest(network),
        "network": [type(network).__name__, network.get_config()],
        "preprocessor": [type(preprocessor).__name__, settings],
        "tokenizer": [type(tokenizer).__name__, tokenizer.get_config()],
        "vocabulary": getattr(tokenizer, "vocabulary", None) or list(tokenizer.get_vocabulary()),
        "merges": getattr(tokenizer, "merges", None),
        "proto": getattr(tokenizer, "proto", None),
    }
    return hashlib.sha256(json.dumps(_plain(content), sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Returns a setting as JSON has it, the same in each process: without names of layers and files."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        # A layer has both; the name of a type of numbers stays.
        left_out = {"config_file", *(("name", "trainable") if {"name", "trainable"} <= set(value) else ())}
        return {str(name): _plain(one) for name, one in value.items() if name not in left_out} | (
            {name: sorted(map(str, value[name])) for name in _UNORDERED if value.get(name)}
        )
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, Iterable):
        return [_plain(one) for one in value]
    if hasattr(value, "get_config"):
        return [type(value).__name__, _plain(value.get_config())]
    return getattr(value, "__qualname__", None) or re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def _pooled(network: Any, name: str) -> Any:
    """Returns the network with the mean over the places of a text behind it."""
    import keras
    from keras import ops

    inputs = network.input if isinstance(network.input, dict) else {}
    output = network.output.get("sequence_output") if isinstance(network.output, dict) else network.output
    if not {"token_ids", "padding_mask"} <= set(inputs) <= _INPUTS or len(getattr(output, "shape", ())) != 3:
        raise ValueError(
            "The preset is no network that makes features of each place of a text. Received: inputs "
            f"{', '.join(inputs) or 'without names'} of {name}. Pass an encoder, such as bert_base_en."
        )
    there = keras.layers.Reshape((-1, 1))(ops.cast(inputs["padding_mask"], "float32"))
    total = ops.sum(keras.layers.Multiply()([output, there]), axis=1)
    return keras.Model(inputs, ops.divide(total, ops.maximum(ops.sum(there, axis=1), 1.0)))
