"""What a loaded model answers, whatever its method and runtime: for the command, and for workers of Ray."""

from ppmn.evaluation.evaluate import model_answers
from ppmn.evaluation.metrics import Protocol
from ppmn.evaluation.predictions import Answers
from ppmn.grounding.grounder import Grounder


def grounder_answers(grounder: Grounder, protocol: Protocol = "full") -> Answers:
    """The masks and scores of a model; of one that only proposes, the best region of each segment."""
    if protocol == "full" and grounder.runtime.name == "torch":  # proposals do not run elsewhere
        from ppmn.evaluation.region_rows import own_answers

        return own_answers(grounder)
    return model_answers(grounder, protocol)
