"""What the library asks of the machine: files, locks, devices, versions."""
