"""Layers of keras_hub that keep the rows of a batch apart, read in 0.32: in other versions no layer is known.

The package is never imported here.
"""

from lipdp.isolation.known import trust_family

# Blocks check what is inside of them: whatever a user puts there instead is no longer known.
# Left out: mixtures of experts, which route the tokens of all rows together, and towers that join images to texts.
_NAMES = (
    *("PositionEmbedding", "TokenAndPositionEmbedding", "ReversibleEmbedding", "RotaryEmbedding"),
    *("SinePositionEncoding", "RMSNormalization", "CachedMultiHeadAttention", "TransformerEncoder"),
    *("TransformerDecoder", "MaskedLMHead", "gelu_approximate"),
    *("GemmaDecoderBlock", "CachedGemmaAttention", "Gemma3DecoderBlock", "CachedGemma3Attention"),
    *("LlamaTransformerDecoder", "LlamaAttention", "LlamaLayerNorm", "LlamaRotaryEmbedding"),
    *("MistralTransformerDecoder", "CachedMistralAttention", "MistralLayerNormalization"),
    *("QwenTransformerDecoder", "QwenAttention", "QwenLayerNorm"),
    *("Qwen3TransformerDecoder", "Qwen3Attention", "Qwen3LayerNorm"),
    *("Phi3Decoder", "Phi3Attention", "Phi3LayerNorm", "Phi3SuScaledRotaryEmbedding"),
    *("ViTPatchingAndEmbedding", "ViTEncoder", "ViTEncoderBlock", "MLP"),
    *(
        "DeiTEmbeddings",
        "DeiTEncoder",
        "DeiTEncoderBlock",
        "DeiTLayer",
        "DeiTMLP",
        "DeiTIntermediate",
        "DeiTOutput",
        "DeiTAttention",
    ),
    *("DepthwiseConvBlock", "InvertedResidualBlock", "ConvBnActBlock", "SqueezeAndExcite2D"),
)

trust_family("keras_hub", _NAMES, release="0.32.")
