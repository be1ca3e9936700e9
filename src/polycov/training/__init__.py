"""From pictures to a trained classifier."""
