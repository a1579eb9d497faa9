"""What servers of a run share: their address, token, log, and the time that a client may take."""
