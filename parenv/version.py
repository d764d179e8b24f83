"""Version of parenv."""

VERSION = "0.2.0"
