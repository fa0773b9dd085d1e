"""Statistics of delays: comparisons of groups, resampling, quantile regression."""
