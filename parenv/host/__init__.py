"""A worker host: the process that runs workers on another machine than the driver's."""
