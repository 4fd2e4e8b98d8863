"""Positional schemes: lists of parts, each of which overrides hooks of the attention."""

from lengthgen.schemes.base import AttentionContext as AttentionContext
from lengthgen.schemes.base import LayerHooks as LayerHooks
from lengthgen.schemes.base import ModelDims as ModelDims
from lengthgen.schemes.base import Part as Part
from lengthgen.schemes.base import Rotated as Rotated
from lengthgen.schemes.base import Unfit as Unfit
from lengthgen.schemes.base import logits as logits
from lengthgen.schemes.base import through_qk as through_qk
from lengthgen.schemes.base import weighted as weighted
from lengthgen.schemes.bias.distance_bias import DistanceBias as DistanceBias
from lengthgen.schemes.parameters import of_layer as of_layer
from lengthgen.schemes.registry import Design as Design
from lengthgen.schemes.registry import part_classes as part_classes
from lengthgen.schemes.scheme import Scheme as Scheme
