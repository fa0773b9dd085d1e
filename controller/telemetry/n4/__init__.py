"""Whose sessions a UPF has, learned from the PFCP messages (3GPP TS 29.244) that it is seen to accept on N4."""
