"""Version of parenv."""

VERSION = "0.3.0"
