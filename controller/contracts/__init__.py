"""What all parts of a controller agree on: modes, reasons, orders, status."""
