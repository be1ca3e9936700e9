"""Many methods, dimensions and seeds on the same images: the experiment of the paper."""
