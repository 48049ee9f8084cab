"""JobManagers: the pure core that decides, the shell that carries out, REST and gRPC around them."""
