"""The methods that `ppmn train` trains and `ppmn.load` opens, by the name that config.json has."""

from ppmn.baselines.mcn_method import MCNMethod
from ppmn.baselines.two_stage_method import TwoStageSmall
from ppmn.model.folder import PPMN_ONLY
from ppmn.model.method import Method

METHODS: dict[str, type[Method]] = {
    **PPMN_ONLY,
    MCNMethod.config_type.method: MCNMethod,
    TwoStageSmall.config_type.method: TwoStageSmall,
}
