"""Layers of keras_hub that keep the rows of a batch apart, read in 0.32: in other versions no layer is known.

The package is never imported here.
"""

from lipdp.isolation.known import trust_family

# Blocks check what is inside of them: whatever a user puts there instead is no longer known.
# Left out: mixtures of experts, which route the tokens of all rows together, and towers that join images to texts.
_BY_MODULE = {
    "layers.modeling.position_embedding": ("PositionEmbedding",),
    "layers.modeling.token_and_position_embedding": ("TokenAndPositionEmbedding",),
    "layers.modeling.reversible_embedding": ("ReversibleEmbedding",),
    "layers.modeling.rotary_embedding": ("RotaryEmbedding",),
    "layers.modeling.sine_position_encoding": ("SinePositionEncoding",),
    "layers.modeling.rms_normalization": ("RMSNormalization",),
    "layers.modeling.cached_multi_head_attention": ("CachedMultiHeadAttention",),
    "layers.modeling.transformer_encoder": ("TransformerEncoder",),
    "layers.modeling.transformer_decoder": ("TransformerDecoder",),
    "layers.modeling.masked_lm_head": ("MaskedLMHead",),
    "utils.keras_utils": ("gelu_approximate",),
    "models.gemma.rms_normalization": ("RMSNormalization",),
    "models.gemma.gemma_attention": ("CachedGemmaAttention",),
    "models.gemma.gemma_decoder_block": ("GemmaDecoderBlock",),
    "models.gemma3.gemma3_layers": ("RMSNormalization",),
    "models.gemma3.gemma3_attention": ("CachedGemma3Attention",),
    "models.gemma3.gemma3_decoder_block": ("Gemma3DecoderBlock",),
    "models.llama.llama_layernorm": ("LlamaLayerNorm",),
    "models.llama.llama_rotary_embedding": ("LlamaRotaryEmbedding",),
    "models.llama.llama_attention": ("LlamaAttention",),
    "models.llama.llama_decoder": ("LlamaTransformerDecoder",),
    "models.mistral.mistral_layer_norm": ("MistralLayerNormalization",),
    "models.mistral.mistral_attention": ("CachedMistralAttention",),
    "models.mistral.mistral_transformer_decoder": ("MistralTransformerDecoder",),
    "models.qwen.qwen_layernorm": ("QwenLayerNorm",),
    "models.qwen.qwen_attention": ("QwenAttention",),
    "models.qwen.qwen_decoder": ("QwenTransformerDecoder",),
    "models.qwen3.qwen3_layernorm": ("Qwen3LayerNorm",),
    "models.qwen3.qwen3_attention": ("Qwen3Attention",),
    "models.qwen3.qwen3_decoder": ("Qwen3TransformerDecoder",),
    "models.phi3.phi3_layernorm": ("Phi3LayerNorm",),
    "models.phi3.phi3_rotary_embedding": ("Phi3SuScaledRotaryEmbedding",),
    "models.phi3.phi3_attention": ("Phi3Attention",),
    "models.phi3.phi3_decoder": ("Phi3Decoder",),
    "models.vit.vit_layers": ("MLP", "ViTEncoder", "ViTEncoderBlock", "ViTPatchingAndEmbedding"),
    "models.deit.deit_layers": ("DeiTEmbeddings", "DeiTEncoder", "DeiTEncoderBlock", "DeiTIntermediate", "DeiTOutput"),
    "models.mobilenet.mobilenet_backbone": (
        *("ConvBnActBlock", "DepthwiseConvBlock", "InvertedResidualBlock", "SqueezeAndExcite2D"),
    ),
    "models.efficientnet.cba": ("CBABlock",),
    "models.efficientnet.mbconv": ("MBConvBlock",),
    "models.efficientnet.fusedmbconv": ("FusedMBConvBlock",),
}

trust_family(
    "keras_hub",
    (f"src.{module}.{name}" for module, names in _BY_MODULE.items() for name in names),
    release="0.32.",
)
