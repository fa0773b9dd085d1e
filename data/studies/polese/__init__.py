"""Polese et al.: base stations of a sliced RAN on the Colosseum emulator."""
