"""Networks: MLPs, convolutions, cores, encoders of observations. They know no RL."""

from redline.models.convolution import ImpalaResNet, MinAtarCNN, NatureCNN
from redline.models.ensemble import EnsembleMLP
from redline.models.mlp import (
    HIDDEN_GAIN,
    POLICY_GAIN,
    VALUE_GAIN,
    make_activation,
    mlp,
    orthogonal_,
)
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
from redline.models.recurrent import Core, GRUCore, LSTMCore, RecurrentCore, make_core
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
