"""Workers on other machines."""

from parenv.options import RayPlacement as RayPlacement
from parenv.options import RemotePlacement as RemotePlacement
