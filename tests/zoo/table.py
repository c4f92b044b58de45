"""The zoo: a line for each model. Its losses and weights have the bits of the plain loop."""

from __future__ import annotations

from tests.unit.executor.modules import Language
from tests.unit.model import replay_language as language
from tests.unit.model import replay_zoo as small
from tests.zoo import hub_images, hub_other, hub_text, own_others, own_sequences
from tests.zoo.case import Case, fused, momentum, own_loss

OWN = {
    # Chains of layers, which are run as such.
    "sequential": Case(
        build=own_others.sequential, inputs=own_others.plain_features, optimizer=momentum, is_chain=True
    ),
    # What torch itself has.
    "encoder": Case(build=own_sequences.encoder, inputs=own_sequences.vectors),
    "transformer": Case(build=own_sequences.transformer, inputs=own_sequences.vector_pairs, optimizer=fused),
    # Arguments by name, masks, numbers, sizes that depend on inputs.
    "masks": Case(build=language.Masked, inputs=own_sequences.words_and_mask),
    "lengths": Case(build=language.Selected, inputs=own_sequences.words_and_lengths),
    "towers": Case(build=small.Towers, inputs=own_others.user_and_item, optimizer=momentum),
    "loss inside": Case(build=own_sequences.LossInside, inputs=own_sequences.words_and_labels, loss=own_loss),
    # Recurrent ones.
    "lstm": Case(build=language.States, inputs=own_sequences.words, optimizer=fused),
    "gru": Case(build=own_sequences.Gru, inputs=own_sequences.words),
    # Images.
    "resnet": Case(build=small.ResNet, inputs=own_others.images, optimizer=momentum),
    "unet": Case(build=small.UNet, inputs=own_others.images),
    "channels last": Case(build=own_others.GroupNormed, inputs=own_others.images),
    "densenet": Case(build=own_others.Dense, inputs=own_others.images),
    # What forward may do.
    "sizes decide": Case(build=small.SizesDecide, inputs=own_others.rows_of_features),
    "python values": Case(build=small.PythonValues, inputs=own_others.features_and_mode),
    "dataclass": Case(build=own_others.Stateful, inputs=own_others.features),
    "in place": Case(build=small.InPlace, inputs=own_others.wide_rows, optimizer=momentum),
    "views": Case(build=own_others.Views, inputs=own_others.odd_features),
    "integers": Case(build=small.IntegerSkip, inputs=own_others.features),
    "guards": Case(build=small.Guarded, inputs=own_others.features),
    "dropout": Case(build=Language, inputs=own_sequences.words_and_padding),
    "random": Case(build=small.Noisy, inputs=own_others.rows_of_features),
    "checkpointed": Case(build=language.Checkpointed, inputs=own_sequences.words),
    "frozen": Case(build=own_others.Frozen, inputs=own_others.features),
    "mixture": Case(build=own_sequences.Mixture, inputs=own_sequences.words, optimizer=fused),
    "complex": Case(build=own_sequences.Spectra, inputs=own_sequences.words, optimizer=momentum),
    "latents": Case(build=own_sequences.Latents, inputs=own_sequences.words),
    "dilated": Case(build=own_sequences.Dilated, inputs=own_sequences.words),
    "graph": Case(build=own_others.Graph, inputs=own_others.graphs),
    "quantized": Case(build=own_others.Quantized, inputs=own_others.features),
    # Parameters that several stages use, also in modules that are called again.
    "tied parameter": Case(build=language.TiedParameter, inputs=own_sequences.words_and_labels, loss=own_loss),
    "tied functional": Case(build=language.TiedFunctional, inputs=own_sequences.words),
    "encoder-decoder": Case(build=language.EncoderDecoder, inputs=own_sequences.source_and_target),
    "cells": Case(build=own_sequences.Cells, inputs=own_sequences.words),
    "siamese": Case(build=own_others.Siamese, inputs=own_others.features),
}
HUB = {
    "llama": Case(build=hub_text.llama, inputs=hub_text.tokens_to_tokens, loss=own_loss),
    "bert": Case(build=hub_text.bert, inputs=hub_text.tokens_to_class, loss=own_loss),
    "gpt-neox": Case(build=hub_text.gpt_neox, inputs=hub_text.tokens_to_tokens, loss=own_loss),
    "mixtral": Case(build=hub_text.mixtral, inputs=hub_text.tokens_to_tokens, loss=own_loss),
    "vit": Case(build=hub_other.vit, inputs=hub_other.pixels, loss=own_loss),
    "clip": Case(build=hub_other.clip, inputs=hub_other.pixels_and_words, loss=own_loss),
    "wav2vec2": Case(build=hub_other.wav2vec2, inputs=hub_other.wave_to_words, loss=own_loss),
    "timm resnet": Case(build=hub_images.resnet, inputs=hub_images.images),
    "timm convnext": Case(build=hub_images.convnext, inputs=hub_images.images),
    "timm vit": Case(build=hub_images.vit, inputs=hub_images.small_images),
    "timm efficientnet": Case(build=hub_images.efficientnet, inputs=hub_images.images),
    "timm mixer": Case(build=hub_images.mixer, inputs=hub_images.images),
    # With tied embeddings.
    "gpt2": Case(build=hub_text.gpt2, inputs=hub_text.tokens_to_tokens, loss=own_loss),
    "t5": Case(build=hub_text.t5, inputs=hub_text.source_to_target, loss=own_loss),
    "distilbert": Case(build=hub_text.distilbert, inputs=hub_text.tokens_to_tokens, loss=own_loss),
    "opt": Case(build=hub_text.opt, inputs=hub_text.tokens_to_tokens, loss=own_loss),
    "whisper": Case(build=hub_other.whisper, inputs=hub_other.sound_to_words, loss=own_loss),
}
ZOO = OWN | HUB
