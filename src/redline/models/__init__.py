"""Networks: perceptrons, convolutions, cores, encoders of observations. Knows no learning."""

from redline.models.convolution import ImpalaResNet, MinAtarCNN, NatureCNN
from redline.models.core import Core
from redline.models.ensemble import EnsembleMLP
from redline.models.initialization import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN, orthogonal_
from redline.models.mlp import make_activation, mlp
from redline.models.noisy import NoisyLinear
from redline.models.observation_encoder import (
    ObservationEncoder,
    image_shape,
    leaf_at,
    leaf_spaces,
    zero_observation,
)
from redline.models.q_heads import (
    CategoricalValueHead,
    ImplicitQuantileHead,
    QHead,
    QuantileHead,
    ScalarHead,
)
from redline.models.recurrent import GRUCore, LSTMCore, RecurrentCore, make_core
from redline.models.transformer import TransformerCore

__all__ = [
    "HIDDEN_GAIN",
    "POLICY_GAIN",
    "VALUE_GAIN",
    "CategoricalValueHead",
    "Core",
    "EnsembleMLP",
    "GRUCore",
    "ImpalaResNet",
    "ImplicitQuantileHead",
    "LSTMCore",
    "MinAtarCNN",
    "NatureCNN",
    "NoisyLinear",
    "ObservationEncoder",
    "QHead",
    "QuantileHead",
    "RecurrentCore",
    "ScalarHead",
    "TransformerCore",
    "image_shape",
    "leaf_at",
    "leaf_spaces",
    "make_activation",
    "make_core",
    "mlp",
    "orthogonal_",
    "zero_observation",
]
