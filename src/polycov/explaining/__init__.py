"""Why a classifier decides as it does: exact contributions of regions and of pairs of regions."""
