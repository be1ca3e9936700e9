"""From images to a trained classifier."""
