"""Who does the work: this process, helper processes of this machine, or a Ray cluster."""
