"""Types that all parts of a controller share: modes, reasons, orders, status."""
