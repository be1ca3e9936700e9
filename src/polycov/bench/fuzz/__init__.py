"""Random cases against an independent reference in float64: shapes, dtypes, strides, masks, magnitudes, ranks, NaN."""
