"""Sessions of a UPF, learned from the PFCP messages (3GPP TS 29.244) on N4."""
