"""Networks of the literature as plain Keras models, for the strategies that clip."""

import keras


def bidirectional_lstm(
    num_words: int, length: int, num_classes: int = 2, embedding_size: int = 32, units: int = 32
) -> keras.Model:
    """Returns a classifier of texts: embedding, bidirectional LSTM, one layer of logits.

    Args:
        num_words: Word numbers are from 0 to `num_words - 1`.
        length: Words of a text.
        num_classes: Number of classes.
        embedding_size: Size of a word's vector.
        units: Units of the LSTM in each direction.

    Returns:
        A `keras.Sequential`; make it private with `lipdp.DP_Model.from_keras`.

    Example:
        >>> bidirectional_lstm(50, 20).output_shape
        (None, 2)
    """
    return keras.Sequential(
        [
            keras.Input((length,), dtype="int32"),
            keras.layers.Embedding(num_words, embedding_size),
            keras.layers.Bidirectional(keras.layers.LSTM(units)),
            keras.layers.Dense(num_classes),
        ]
    )


def small_cnn(shape: tuple[int, ...] = (28, 28, 1), num_classes: int = 10) -> keras.Model:
    """Returns the image classifier that DP-SGD is compared on: two convolutions with tanh, one hidden layer.

    Args:
        shape: `(height, width, channels)` of an image.
        num_classes: Number of classes.

    Returns:
        A `keras.Sequential`; make it private with `lipdp.DP_Model.from_keras`. 26,010 weights for 28 x 28 x 1.
        Source: Papernot et al. 2021, "Tempered sigmoid activations for deep learning with differential privacy".

    Example:
        >>> small_cnn().count_params()
        26010
    """
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(16, 8, strides=2, padding="same", activation="tanh"),
            keras.layers.MaxPooling2D(2, 1),
            keras.layers.Conv2D(32, 4, strides=2, padding="valid", activation="tanh"),
            keras.layers.MaxPooling2D(2, 1),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.Dense(num_classes),
        ]
    )
