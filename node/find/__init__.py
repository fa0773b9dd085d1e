"""Finding UPFs: processes, containers, sockets and interfaces."""
