"""Discovery of UPFs by processes, containers, sockets and interfaces."""
