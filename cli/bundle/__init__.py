"""``slicepilot bundle ...``: policies of other libraries made into bundles, and bundles into their files."""
