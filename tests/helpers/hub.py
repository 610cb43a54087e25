"""Small models of keras_hub and keras.applications with random weights."""

import keras
import keras_hub
import numpy as np

models = keras_hub.models
LENGTH, WORDS = 9, 23
_TEXT = {"vocabulary_size": WORDS, "num_layers": 2, "hidden_dim": 8, "intermediate_dim": 12}
_ENCODER = {**_TEXT, "num_heads": 2, "max_sequence_length": 12, "dropout": 0.0}
_DECODER = {**_TEXT, "num_query_heads": 2, "num_key_value_heads": 1}
_GEMMA = {**_DECODER, "head_dim": 4}
_IMAGE = {"image_shape": (16, 16, 3), "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}

TEXT = {
    "bert": lambda: models.BertBackbone(**_ENCODER),
    "roberta": lambda: models.RobertaBackbone(**_ENCODER),
    "distil_bert": lambda: models.DistilBertBackbone(**_ENCODER),
    "gpt2": lambda: models.GPT2Backbone(**_ENCODER),
    "opt": lambda: models.OPTBackbone(**_ENCODER),
    "gemma": lambda: models.GemmaBackbone(**_GEMMA),
    "gemma3": lambda: models.Gemma3Backbone(image_size=16, **_GEMMA),
    "llama": lambda: models.LlamaBackbone(**_DECODER),
    "llama3": lambda: models.Llama3Backbone(**_DECODER),
    "mistral": lambda: models.MistralBackbone(sliding_window=4, **_DECODER),
    "qwen": lambda: models.QwenBackbone(**_DECODER),
    "qwen3": lambda: models.Qwen3Backbone(head_dim=4, **_DECODER),
    "phi3": lambda: models.Phi3Backbone(**_DECODER),
}
IMAGES = {
    "vit": lambda: models.ViTBackbone(mlp_dim=12, **_IMAGE),
    "deit": lambda: models.DeiTBackbone(intermediate_dim=12, **_IMAGE),
    "resnet": lambda: models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(8, 8, 3),
    ),
    "mobile_net": lambda: keras.applications.MobileNetV2(
        weights=None, input_shape=(32, 32, 3), include_top=False, alpha=0.05
    ),
    "efficient_net": lambda: _efficient_net(),
    "efficient_net_v2": lambda: _efficient_net_v2(),
    "hub_efficient_net": lambda: _hub_efficient_net(),
    "conv_next": lambda: _conv_next(),
}


def _efficient_net():
    """Blocks of B0, one where expansion is 1 and one with a shortcut; its dropout of whole blocks is off."""
    from keras.src.applications import efficientnet

    blocks = efficientnet.DEFAULT_BLOCKS_ARGS
    return efficientnet.EfficientNet(
        *(0.1, 1.0, 32),
        drop_connect_rate=0.0,
        blocks_args=[{**blocks[0]}, {**blocks[1]}],
        weights=None,
        include_top=False,
        input_shape=(32, 32, 3),
    )


def _efficient_net_v2():
    """The first blocks of V2-B0, which are fused, and one with squeeze and excitation."""
    from keras.src.applications import efficientnet_v2

    blocks = efficientnet_v2.DEFAULT_BLOCKS_ARGS["efficientnetv2-b0"]
    return efficientnet_v2.EfficientNetV2(
        *(0.1, 0.5, 32),
        drop_connect_rate=0.0,
        blocks_args=[{**blocks[i], "num_repeat": 1} for i in (0, 1, 3)],
        weights=None,
        include_top=False,
        input_shape=(32, 32, 3),
        include_preprocessing=False,
    )


def _hub_efficient_net():
    """Each kind of block of keras_hub, one of them with a shortcut."""
    return models.EfficientNetBackbone(
        stackwise_width_coefficients=[1.0] * 4,
        stackwise_depth_coefficients=[1.0] * 4,
        stackwise_kernel_sizes=[3] * 4,
        stackwise_num_repeats=[1] * 4,
        stackwise_input_filters=[8] * 4,
        stackwise_output_filters=[8] * 4,
        stackwise_expansion_ratios=[1, 1, 4, 1],
        stackwise_strides=[1, 1, 2, 1],
        stackwise_squeeze_and_excite_ratios=[0.25, 0.25, 0.25, 0.0],
        stackwise_block_types=["v1", "fused", "unfused", "cba"],
        input_shape=(16, 16, 3),
        num_features=16,
        dropout=0.0,
    )


def _conv_next():
    """Two blocks, as keras.applications has no small one."""
    from keras.src.applications import convnext

    return convnext.ConvNeXt(
        depths=[1, 1, 1, 1], projection_dims=[4, 6, 8, 8], weights=None, include_top=False, input_shape=(32, 32, 3)
    )


def text_rows(rows=3, seed=0) -> dict:
    """Token ids of which the last ones are padding, as a dictionary for any text model."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(LENGTH) < rng.integers(4, LENGTH, rows)[:, None]).astype("int32")
    ids = rng.integers(1, WORDS, (rows, LENGTH)).astype("int32") * mask
    return {"token_ids": ids, "padding_mask": mask, "segment_ids": np.zeros_like(ids)}


def rows_for(model, rows=3, seed=0):
    """Inputs of the names that a model asks for."""
    if isinstance(model.input, dict):
        found = text_rows(rows, seed)
        return {name: found[name] for name in model.input}
    shape = model.input_shape[1:]
    return np.random.default_rng(seed).normal(size=(rows, *shape)).astype("float32")


def frozen_batch_normalization(model):
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    return model
