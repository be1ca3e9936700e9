"""The machine below the library: files, locks, tables, devices, versions and hardware."""
