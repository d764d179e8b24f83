"""From the figures of a run to advice on how to set it: pure decisions, and their words.

The core imports this door and nothing behind it, and only once somebody asks for advice.
"""

from parenv.advice.advising import advise, costs_of
from parenv.advice.costs import Setting
from parenv.advice.device_choice import forward_place
from parenv.advice.recommendations import Advice

__all__ = ["Advice", "Setting", "advise", "costs_of", "forward_place"]
