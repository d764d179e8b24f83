"""Many policies that learn side by side, of which the better ones are copied: population-based training."""
