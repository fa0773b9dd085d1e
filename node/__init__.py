"""Control of UPFs that already run on this machine."""
