"""A model of lengthgen for transformers: AutoModelForCausalLM with trust_remote_code=True.

Written beside the weights by lengthgen export, and loaded from there; needs lengthgen installed.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from lengthgen.hub.exported import About, build


class LengthgenConfig(PreTrainedConfig):
    model_type = "lengthgen"
    lengthgen: dict[str, Any]


class LengthgenForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = LengthgenConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it by its steps

    def __init__(self, config: LengthgenConfig) -> None:
        super().__init__(config)
        with torch.device("cpu"):  # transformers builds on meta, where constants have no values
            about = About.model_validate(config.lengthgen)
            self.model = build(about, Path(str(config.name_or_path)))
        self.constants = {m: dict(m.named_buffers(recurse=False)) for m in self.model.modules()}
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Restores buffers, of which transformers leaves those empty that no file has."""
        for name, value in self.constants.get(module, {}).items():
            if not getattr(buffer := module.get_buffer(name), "_is_hf_initialized", False):
                buffer.copy_(value)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Returns logits [B, T, V], and with labels their mean loss. Padding goes to the right."""
        mask = attention_mask
        if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
            raise ValueError("padding before a token would move its position; pad on the right")
        logits = self.model.logits(self.model(input_ids))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Returns all tokens so far: nothing is cached."""
        mask = kwargs.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            raise ValueError("new tokens would stand behind padding; generate from one text a call")
        return {"input_ids": input_ids, "attention_mask": mask}
