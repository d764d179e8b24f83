"""Workers on other machines."""

from parenv.errors import HostLostError as HostLostError
from parenv.options import RayPlacement as RayPlacement
from parenv.options import RemotePlacement as RemotePlacement
