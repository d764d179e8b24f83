"""What pool and vector env share on the driver's side: the workers, how they fail, what they are sent."""
