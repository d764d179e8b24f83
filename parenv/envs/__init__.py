"""Sub-environments: how they are made and seeded, and how a worker steps its share of them in place."""
