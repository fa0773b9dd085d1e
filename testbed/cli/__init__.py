"""Commands of the testbed, found by the command line through `slicepilot.testbed.plugin`."""
